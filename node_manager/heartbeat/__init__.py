"""Heartbeats between the agent and its components: codec, server side, and the client for Python programs."""
