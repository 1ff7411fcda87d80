"""Small real components that speak the heartbeat protocol: for newcomers, for tests, and as a model.

They use the standard library and `node_manager.heartbeat.client` alone, one thread each, and keep every promise
that the design asks of an authority. `docs/reference/reference-components.md` describes them.
"""
