"""A cluster in virtual time: the real core, modelled hosts, seeded faults, invariants after every event.

`python -m tests.simulation --seeds 0..99` runs it; `docs/explanation/simulation.md` says what it proves.
"""
