"""Threads come when they are needed, and no more of them than that."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from node_manager.runtime.crew import Crew

BOUND_S = 20


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that nobody else uses."""
    found = asyncio.new_event_loop()
    yield found
    found.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    bound = loop.call_later(BOUND_S, loop.stop)
    loop.run_forever()
    bound.cancel()


def test_one_thread_does_what_does_not_hang(loop: asyncio.AbstractEventLoop) -> None:
    """In the order in which it was asked for."""
    crew = Crew(loop, "crew", size=8, max_waiting=100)
    names: list[tuple[int, int]] = []
    answers: list[int] = []
    gate = threading.Event()

    def work(number: int) -> int:
        gate.wait(BOUND_S)
        names.append((number, threading.get_ident()))
        return number

    def done(number: int) -> None:
        answers.append(number)
        if number == 49:
            loop.stop()

    for number in range(50):
        assert crew.do(lambda number=number: work(number), done)  # type: ignore[misc]
    gate.set()
    _run(loop)
    assert answers == [number for number, _thread in names] == list(range(50))
    assert len({thread for _number, thread in names}) == 1


def test_what_hangs_holds_nothing_up_but_its_thread(loop: asyncio.AbstractEventLoop) -> None:
    """Others get another thread, as long as the crew has one; then they wait until one is free."""
    crew = Crew(loop, "crew", size=3, max_waiting=100)
    gate = threading.Event()
    answers: list[str] = []

    def hang() -> str:
        gate.wait(BOUND_S)
        return "hung"

    def done(answer: str) -> None:
        answers.append(answer)
        loop.stop()

    for _ in range(2):
        crew.do(hang, done)
    crew.do(lambda: "third", done)
    _run(loop)
    assert answers == ["third"]
    crew.do(hang, done)
    crew.do(lambda: "fifth", done)
    loop.call_later(0.2, loop.stop)  # far longer than another thread takes to come, if it did
    _run(loop)
    assert answers == ["third"]
    gate.set()
    while len(answers) < 5:
        _run(loop)
    assert sorted(answers) == ["fifth", "hung", "hung", "hung", "third"]


def test_too_much_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    """What waits is bounded."""
    crew = Crew(loop, "crew", size=1, max_waiting=2)
    gate = threading.Event()
    taken = threading.Event()

    def hang() -> None:
        taken.set()
        gate.wait(BOUND_S)

    assert crew.do(hang, lambda _answer: None)
    taken.wait(BOUND_S)
    assert [crew.do(lambda: None, lambda _answer: loop.stop()) for _ in range(3)] == [True, True, False]
    gate.set()
    _run(loop)


def test_a_closed_crew_calls_nobody(loop: asyncio.AbstractEventLoop) -> None:
    """Nor does it begin anything."""
    crew = Crew(loop, "crew", size=1, max_waiting=2)
    called: list[None] = []
    assert crew.do(lambda: None, called.append)
    crew.close()
    assert not crew.do(lambda: None, called.append)
    loop.call_later(0.05, loop.stop)
    _run(loop)
    assert called == []
