"""Thousands of requests with random faults, in virtual time, and the checks that each of them must pass.

scenes.py    what is asked, and what goes wrong with it: drawn from a seed
clients.py   one client: asks, reads (slowly), leaves
checks.py    what must be true of one answer, and of a world when it is over
worlds.py    one world: a Coordinator, a sidecar, engines, and the scenes that are played in it at once
"""
