"""`python -m motor_flow`."""

from motor_flow.cli import main

main()
