"""The event history."""

from node_manager.core.actions import Log
from node_manager.runtime.history import COLLAPSE_WITHIN_NS, MAX_TEXT, History

S = 1_000_000_000
WALL_NS = 1_760_000_000 * S


def crash(n: int, component: str = "c") -> Log:
    return Log(event="component.exited", component=component, fields=(("how", "status 1"), ("generation", n)))


def test_repeats_are_one_entry_with_a_count_and_a_new_sequence_number() -> None:
    """A crash loop takes one place, shows the last time and the first, and a follower sees each repeat."""
    history = History()
    for n in range(5):
        history.add(crash(n), WALL_NS + n * S)
    entries = history.after(0, 100)
    assert [(entry["seq"], entry["count"], entry["generation"]) for entry in entries] == [(5, 5, 4)]
    assert entries[0]["first_at"] == "2025-10-09T08:53:20.000Z"
    assert entries[0]["at"] == "2025-10-09T08:53:24.000Z"


def test_another_component_or_another_reason_is_another_entry() -> None:
    """Only what says the same of the same component is a repeat."""
    history = History()
    history.add(crash(1), WALL_NS)
    history.add(crash(1, "d"), WALL_NS)
    history.add(Log(event="component.exited", component="c", fields=(("how", "status 2"),)), WALL_NS)
    assert len(history.after(0, 100)) == 3


def test_what_happens_again_much_later_is_a_new_entry() -> None:
    """An operator wants to see both times; the chain of repeats begins anew."""
    history = History()
    history.add(crash(1), WALL_NS)
    history.add(crash(2), WALL_NS + COLLAPSE_WITHIN_NS + 1)
    history.add(crash(3), WALL_NS + COLLAPSE_WITHIN_NS + 2)
    assert [entry.get("count", 1) for entry in history.after(0, 100)] == [1, 2]


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
    history = History(max_entries=1)
    history.add(crash(1), WALL_NS)
    history.add(crash(1, "d"), WALL_NS)
    assert "count" not in history.add(crash(2), WALL_NS)


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
