"""Holders of the example's lease in etcd: a program in C for each, which a test commands."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node_manager.reference.loop import Loop
from tests.libxce.test_library import can_sanitize, make

BOUND_S = 40.0
MINUTE_MS = 60_000


class Driver:
    """One holder: a program with the example's lease, which obeys lines."""

    def __init__(
        self, command: list[str], endpoints: str, name: str, holder: str, identity: str, lease_ms: int
    ) -> None:
        self._process = subprocess.Popen(
            [*command, endpoints, name, holder, identity, str(lease_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def order(self, *words: object) -> None:
        """Say it, and do not wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[str, ...]:
        """The next line's words; those of `unknown` are one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        assert line, self._process.stderr.read() if self._process.stderr else ""
        word, _, rest = line.partition(" ")
        return (word, rest) if word == "unknown" else (word, *rest.split())

    def look(self) -> tuple[str, ...]:
        self.order("look")
        return self.answer()

    def acquire(self, *, length_ms: int = MINUTE_MS, new_term: bool = False) -> tuple[str, ...]:
        self.order("acquire", length_ms, int(new_term))
        return self.answer()

    def hold(self, *, length_ms: int = MINUTE_MS, new_term: bool = False) -> tuple[int, int]:
        """Acquire, which must succeed, although a busy machine's store may not answer in time; the term and the end."""
        until_s = time.monotonic() + BOUND_S
        while True:
            found = self.acquire(length_ms=length_ms, new_term=new_term)
            if found[0] != "unknown" or "no answer in time" not in found[1] or time.monotonic() > until_s:
                break
        assert found[0] == "held", found
        return int(found[1]), int(found[2])

    def unknown(self) -> str:
        """Acquire, which must fail; why."""
        found = self.acquire()
        assert found[0] == "unknown", found
        return found[1]

    def release(self, term: int) -> tuple[str, ...]:
        self.order("release", term)
        return self.answer()

    def jump(self, delta_ns: int) -> int:
        """Let its clock jump; its new time."""
        self.order("clock", delta_ns)
        word, now = self.answer()
        assert word == "clock"
        return int(now)

    def end(self) -> None:
        """Let it end, which it must in order: sanitizers and valgrind would say so."""
        if self._process.poll() is None:
            _out, errors = self._process.communicate(timeout=BOUND_S)
            assert (self._process.returncode, errors) == (0, "")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libxce")


@pytest.fixture(scope="module")
def program(build: Path) -> str:
    """Where the driver is; with sanitizers, where the compiler has them."""
    path = build / ("sanitize/leasedriver" if can_sanitize(build) else "leasedriver")
    make(str(path), build)
    return str(path)


MakeDriver = Callable[..., Driver]


@pytest.fixture
def driver(program: str, name: str) -> Iterator[MakeDriver]:
    """Make holders, whose identity is their name; each must end in order."""
    made: list[Driver] = []

    def start(
        endpoints: str,
        holder: str = "a",
        *,
        identity: str = "",
        lease_ms: int = MINUTE_MS,
        command: list[str] | None = None,
    ) -> Driver:
        made.append(Driver(command or [program], endpoints, name, holder, identity or holder, lease_ms))
        return made[-1]

    try:
        yield start
        for each in made:
            each.end()
    finally:
        for each in made:
            each.kill()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lease that no other test has."""
    return f"/xce/c/{request.node.name}"


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()
