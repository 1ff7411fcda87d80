"""The pure core: every decision, no I/O, no clock, no randomness, no logging.

`node.step(state, event, now)` is the only way in. Nothing in this package imports anything but stdlib data
modules and itself; `tests/unit/test_architecture.py` enforces it.
"""
