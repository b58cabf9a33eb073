"""`python cli.py VERB` is `motor-flow VERB`: for a checkout that is not installed."""

from __future__ import annotations

from motor_flow.cli import main

if __name__ == "__main__":
    main()
