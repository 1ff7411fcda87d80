import asyncio
import os
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_manager.api.limits import Limits
from node_manager.api.listener import ListenError, bind
from node_manager.api.server import ApiServer
from tests.unit.api.conftest import Serve
from tests.unit.api.fake import FakeBackend, Service, short_directory
from tests.unit.api.http import Reply, get, request_bytes


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path."""
    with short_directory() as path:
        yield path


def test_everyone_may_ask(service: Service) -> None:
    """The socket is open to every user, whatever the umask: permissions are checked for each change."""
    assert stat.S_IMODE(service.path.stat().st_mode) == 0o666


def test_stale_socket_is_replaced(directory: Path) -> None:
    """What an agent left that was killed does not keep the next one from serving."""
    path = directory / "status.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    bind(path).close()


def test_other_files_are_never_removed(directory: Path) -> None:
    """A path that is not a socket is refused and stays."""
    path = directory / "status.sock"
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        bind(path)
    link = directory / "link.sock"
    link.symlink_to(path)
    with pytest.raises(ListenError, match="not a socket"):
        bind(link)
    assert path.read_text() == "precious"


def test_living_agent_is_not_displaced(service: Service) -> None:
    """A second agent on the same path is refused, and the first still answers."""
    with pytest.raises(ListenError, match="another agent answers"):
        bind(service.path)
    assert get(service, "/v1/live").status == 200


def test_path_that_is_too_long_says_so(directory: Path) -> None:
    """The kernel's limit is named instead of its error."""
    with pytest.raises(ListenError, match="longer than 107 bytes"):
        bind(directory / ("x" * 120))


def test_directory_that_is_missing(directory: Path) -> None:
    """The path and the reason are in the sentence."""
    with pytest.raises(ListenError, match=r"cannot listen at .*/missing/s: No such file"):
        bind(directory / "missing" / "s")


def test_socket_is_removed_at_the_end(directory: Path) -> None:
    """After a proper end nobody finds a dead socket."""
    with Service(directory) as service:
        assert service.path.is_socket()
    assert not service.path.exists()


def test_successors_socket_is_not_removed(directory: Path) -> None:
    """An agent that ends leaves alone what its successor has put there."""
    with Service(directory) as service:
        service.path.unlink()
        successor = bind(service.path)
    assert service.path.is_socket()
    successor.close()


def test_listening_socket_can_be_handed_over(directory: Path) -> None:
    """A server takes a socket that listens already, serves who waits there, and leaves its path alone."""
    path = directory / "status.sock"
    inherited = bind(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        sock.sendall(request_bytes("GET", "/v1/live"))
        loop = asyncio.new_event_loop()
        server = ApiServer(loop, path, FakeBackend(), version="1")
        server.start(inherited)
        assert server.listener is inherited
        answered = loop.create_future()
        loop.add_reader(sock, answered.set_result, None)
        loop.run_until_complete(asyncio.wait_for(answered, 20))
        loop.remove_reader(sock)
        assert Reply(sock).json == {"live": True}
        server.close()
        server.close()
        loop.close()
    assert path.is_socket()


def test_running_out_of_descriptors_passes(serve: Serve) -> None:
    """The server waits until it can accept again, without spinning and without forgetting its listener."""
    service = serve(Limits())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def connect_and_run_out() -> socket.socket:
        # On the loop's thread, so that nothing is accepted before nothing can be.
        sock = service.connect()
        lowest_free = os.dup(sock.fileno())
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        return sock

    try:
        sock = service.on_loop(connect_and_run_out)
        service.until(lambda: not service.server.accepting)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with sock:
        sock.sendall(request_bytes("GET", "/v1/live"))
        assert Reply(sock).status == 200
