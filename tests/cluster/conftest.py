"""Fixtures of the cluster's tests: those of the integration tests."""

from tests.integration.conftest import make_host, place

__all__ = ["make_host", "place"]
