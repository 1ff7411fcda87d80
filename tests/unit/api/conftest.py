from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from node_manager.api.limits import Limits
from tests.unit.api.fake import Service, short_directory

Serve = Callable[[Limits], Service]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes servers that are closed at the end; no callback of theirs may have raised."""
    with ExitStack() as stack:
        services: list[Service] = []

        def make(limits: Limits) -> Service:
            directory = stack.enter_context(short_directory())
            services.append(stack.enter_context(Service(directory, limits)))
            return services[-1]

        yield make
    assert [service.errors for service in services if service.errors] == []


@pytest.fixture
def service(serve: Serve) -> Service:
    """A server with the limits that it has in the field."""
    return serve(Limits())
