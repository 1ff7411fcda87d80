"""Fixtures of the cluster's tests: those of the integration tests."""

from tests.integration.conftest import leftovers, make_host, place

__all__ = ["leftovers", "make_host", "place"]
