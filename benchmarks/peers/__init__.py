"""Supervisors measured side by side: `python -m benchmarks.peers`.

What is measured and how stands in docs/reference/performance.md.

Every supervisor is an adapter (`adapter`, `peers`, `directories`, `services`, `floors`, `ours`), set up for one session
of N equal components; `measures` takes the times of one session, `rounds` interleaves the sessions of all, `results`
keeps what came out, `report` and `picture` show it.
"""
