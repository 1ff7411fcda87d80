"""The event history."""

from node_manager.core.actions import Log
from node_manager.runtime.history import COLLAPSE_WITHIN_NS, KEPT_REPEATS, MAX_TEXT, History

S = 1_000_000_000
WALL_NS = 1_760_000_000 * S


def crash(n: int, component: str = "c") -> Log:
    fields = (("how", "status 1"), ("generation", n), ("path", f"/evidence/{n}.txt"))
    return Log(event="component.exited", component=component, fields=fields)


def test_a_timeline_stays_a_timeline() -> None:
    """What happens a few times stands there a few times: each with its own figures, none merged away."""
    history = History()
    for n in range(KEPT_REPEATS):
        history.add(crash(n), WALL_NS + n * S)
    assert [entry["generation"] for entry in history.after(0, 100)] == list(range(KEPT_REPEATS))
    assert not any("count" in entry for entry in history.after(0, 100))


def test_endless_repeats_are_collapsed_into_the_last() -> None:
    """A crash loop takes a few places and no more; the last shows how often, since when, and a new sequence number."""
    history = History()
    for n in range(20):
        history.add(crash(n), WALL_NS + n * S)
    entries = history.after(0, 100)
    assert [entry["generation"] for entry in entries] == [*range(KEPT_REPEATS - 1), 19]
    assert (entries[-1]["seq"], entries[-1]["count"]) == (20, 13)
    assert entries[-1]["first_at"] == "2025-10-09T08:53:27.000Z"
    assert entries[-1]["at"] == "2025-10-09T08:53:39.000Z"


def test_another_component_or_another_reason_is_another_entry() -> None:
    """Only what says the same of the same component is a repeat."""
    history = History()
    history.add(crash(1), WALL_NS)
    history.add(crash(1, "d"), WALL_NS)
    history.add(Log(event="component.exited", component="c", fields=(("how", "status 2"),)), WALL_NS)
    assert len(history.after(0, 100)) == 3


def test_what_happens_again_much_later_is_a_new_entry() -> None:
    """Repeats further apart than the window do not count for each other."""
    history = History()
    for n in range(3 * KEPT_REPEATS):
        history.add(crash(n), WALL_NS + n * (COLLAPSE_WITHIN_NS // 4))
    assert len(history.after(0, 100)) == 3 * KEPT_REPEATS


def test_an_operators_words_are_never_collapsed() -> None:
    """The same command given twice was given twice."""
    history = History()
    for _ in range(2):
        history.add(Log(event="command.received", component="c", fields=(("verb", "stop"),)), WALL_NS)
    assert [entry["seq"] for entry in history.after(0, 100)] == [1, 2]


def test_the_history_is_bounded() -> None:
    """The oldest entries go; texts are cut."""
    history = History(max_entries=3)
    for n in range(10):
        history.add(Log(event=f"e.{n}", component=None, fields=(("text", "x" * 9999),)), WALL_NS)
    entries = history.after(0, 100)
    assert [entry["event"] for entry in entries] == ["e.7", "e.8", "e.9"]
    assert len(entries[0]["text"]) == MAX_TEXT


def test_an_entry_that_fell_out_can_come_again() -> None:
    """What was pushed out of the history leaves nothing behind that a repeat would count on."""
    history = History(max_entries=2)
    for n in range(100):
        entry = history.add(crash(n, "c" if n % 2 else "d"), WALL_NS + n)
        assert "count" not in entry
    assert len(history.after(0, 100)) == 2


def test_pages_and_the_events_of_one_component() -> None:
    """`after` gives the oldest of what is newer; `of` the last of one component."""
    history = History()
    for n in range(6):
        history.add(Log(event=f"e.{n}", component="c" if n % 2 else "d"), WALL_NS)
    assert [entry["seq"] for entry in history.after(2, 2)] == [3, 4]
    assert history.after(6, 2) == []
    assert [entry["event"] for entry in history.of("c", 2)] == ["e.3", "e.5"]


def test_subscribers_are_woken_until_they_leave() -> None:
    """Each new entry wakes whoever follows."""
    history, wakes = History(), []
    leave = history.subscribe(lambda: wakes.append(1))
    history.add(crash(1), WALL_NS)
    leave()
    history.add(crash(2), WALL_NS)
    assert wakes == [1]


def test_a_successor_goes_on_counting() -> None:
    """What another history left has its places and numbers, and its repeats go on being collapsed."""
    first, second = History(), History()
    first.add(Log(event="command.received", component=None, fields=(("verb", "reexec"),)), WALL_NS)
    for n in range(KEPT_REPEATS + 3):
        first.add(crash(n), WALL_NS + n * S)
    second.restore(first.keep())
    for history in (first, second):
        history.add(crash(99), WALL_NS + 50 * S)
        history.add(Log(event="command.received", component=None, fields=(("verb", "reexec"),)), WALL_NS)
    assert first.after(0, 100) == second.after(0, 100)
    assert second.after(0, 100)[-2]["count"] == 5
