"""The fault suite: real agents and real processes, hurt on purpose, judged by an observer of its own.

`python -m pytest -m faults tests/faults` runs it and ends with a summary of what was injected and what came of it; a
test fails where a component is lost, doubled or orphaned, or where anybody is signalled who must not be. Each test
prints the seed of its random choices; `XCE_FAULTS_SEED=n` repeats them. docs/explanation/failures.md says which
scenario is shown by which test.
"""
