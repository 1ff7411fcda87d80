"""The election: what may be said about leadership, and when."""

from node_manager.reference.election import Election, Stance
from node_manager.reference.lease import Answer, Free, Held, Taken, Unknown

LEASE_NS = 10_000_000_000
RENEW_NS = 2_000_000_000
MARGIN_NS = 10_000_000
NEVER_NS = 10**18


class ScriptedStore:
    """A LeaseStore that answers what it is told to, and remembers what it was asked. `late`: only when told to."""

    def __init__(self, *answers: Answer, late: bool = False) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.late = late
        self.ready = False

    def _ask(self, question: str) -> None:
        self.asked.append(question)
        self.ready = not self.late

    def look(self) -> None:
        self._ask("look")

    def acquire(self, *, lease_ns: int, new_term: bool) -> None:
        self._ask(f"acquire {lease_ns} {new_term}")

    def release(self, *, term: int) -> None:
        self._ask(f"release {term}")

    def answer(self, now_ns: int) -> Answer | None:
        assert now_ns >= 0
        if not self.ready:
            return None
        self.ready = False
        return self.answers.pop(0)

    def next_ns(self) -> int:
        return NEVER_NS


def election(store: ScriptedStore, *, willing: bool = True) -> Election:
    return Election(store, holder="me", lease_ns=LEASE_NS, renew_ns=RENEW_NS, willing=willing)


def test_nothing_is_said_before_the_store_was_read() -> None:
    """An unreadable store leaves the stance unread, and it is asked again soon."""
    candidate = election(ScriptedStore(Unknown(reason="torn"), Taken(holder="other", term=3, valid_until_ns=LEASE_NS)))
    candidate.poll(0)
    stances = [candidate.stance]
    assert candidate.trouble == "torn"
    assert 0 < candidate.next_ns < RENEW_NS
    candidate.poll(candidate.next_ns)
    stances.append(candidate.stance)
    assert stances == [Stance.UNREAD, Stance.STANDBY]
    assert (candidate.leader, candidate.term, candidate.trouble) == ("other", 3, "")


def test_what_is_stated_ends_before_the_record_does() -> None:
    """The stated end leaves out the share that clock rates may differ."""
    candidate = election(ScriptedStore(Held(term=1, valid_until_ns=LEASE_NS)))
    candidate.poll(0)
    assert candidate.valid_until_ns == LEASE_NS - MARGIN_NS
    assert candidate.leads(candidate.valid_until_ns - 1)
    assert not candidate.leads(candidate.valid_until_ns)


def test_a_leader_that_cannot_renew_keeps_what_it_stated_and_no_more() -> None:
    """Trouble with the store does not end a stated validity, and does not lengthen it."""
    candidate = election(
        ScriptedStore(Held(term=1, valid_until_ns=LEASE_NS), *[Unknown(reason="disk") for _ in range(100)])
    )
    candidate.poll(0)
    while candidate.next_ns < candidate.valid_until_ns:
        candidate.poll(candidate.next_ns)
        assert candidate.stance is Stance.PRIMARY
        assert candidate.valid_until_ns == LEASE_NS - MARGIN_NS
    candidate.poll(candidate.valid_until_ns)
    assert candidate.stance is Stance.STANDBY


def test_a_leader_that_slept_beyond_its_lease_asks_before_it_speaks() -> None:
    """After SIGSTOP the first turn notices the end; leadership comes back under a new term only."""
    store = ScriptedStore(
        Held(term=1, valid_until_ns=LEASE_NS), Taken(holder="other", term=2, valid_until_ns=4 * LEASE_NS)
    )
    candidate = election(store)
    candidate.poll(0)
    assert not candidate.leads(3 * LEASE_NS)
    candidate.poll(3 * LEASE_NS)
    assert candidate.stance is Stance.STANDBY
    assert candidate.leader == "other"


def test_an_acquisition_that_took_longer_than_its_lease_is_not_stated() -> None:
    """A validity that is over already makes nobody primary."""
    candidate = election(ScriptedStore(Held(term=1, valid_until_ns=LEASE_NS)))
    candidate.poll(2 * LEASE_NS)
    assert candidate.stance is Stance.STANDBY


def test_a_term_that_goes_back_is_not_stated() -> None:
    """A store that grants a lower term than before is in trouble, whatever it says."""
    candidate = election(
        ScriptedStore(Held(term=5, valid_until_ns=LEASE_NS), Held(term=4, valid_until_ns=9 * LEASE_NS))
    )
    candidate.poll(0)
    candidate.poll(RENEW_NS)
    assert candidate.stance is Stance.STANDBY
    assert candidate.term == 5
    assert "went back" in candidate.trouble


def test_stepping_down_stops_renewing_and_leaves_the_record() -> None:
    """After it the store is only looked at; standing again asks for a new term."""
    store = ScriptedStore(
        Held(term=1, valid_until_ns=LEASE_NS),
        Taken(holder="me", term=1, valid_until_ns=LEASE_NS),
        Held(term=2, valid_until_ns=2 * LEASE_NS),
        Held(term=2, valid_until_ns=3 * LEASE_NS),
    )
    candidate = election(store)
    candidate.poll(0)
    candidate.step_down()
    assert candidate.stance is Stance.STANDBY
    candidate.poll(RENEW_NS)
    assert candidate.leader is None
    candidate.stand(RENEW_NS + 1)
    candidate.poll(RENEW_NS + 1)
    assert (candidate.stance, candidate.term) == (Stance.PRIMARY, 2)
    candidate.poll(2 * RENEW_NS + 1)
    assert store.asked == [
        f"acquire {LEASE_NS} False",
        "look",
        f"acquire {LEASE_NS} True",
        f"acquire {LEASE_NS} False",
    ]


def test_a_leader_cannot_release() -> None:
    """A lease is given back after stepping down, never while primary is said; whether it was, the store tells."""
    store = ScriptedStore(Held(term=1, valid_until_ns=LEASE_NS), Free(term=1))
    candidate = election(store)
    candidate.poll(0)
    candidate.release()
    assert store.asked == [f"acquire {LEASE_NS} False"]
    candidate.step_down()
    candidate.release()
    assert store.asked[-1] == "release 1"
    assert (candidate.releasing, candidate.released) == (True, False)
    candidate.poll(1)
    assert (candidate.releasing, candidate.released) == (False, True)


def test_a_rival_looks_again_at_the_end_of_the_others_lease() -> None:
    """A standby takes over soon after the end, without asking the store all the time."""
    candidate = election(ScriptedStore(Taken(holder="other", term=1, valid_until_ns=RENEW_NS // 2)))
    candidate.poll(0)
    assert candidate.next_ns == RENEW_NS // 2


def test_an_answer_that_comes_after_stepping_down_brings_nothing_back() -> None:
    """A renewal that was under way when standby was said makes nobody primary."""
    store = ScriptedStore(
        Held(term=1, valid_until_ns=LEASE_NS),
        Held(term=1, valid_until_ns=2 * LEASE_NS),
        Held(term=2, valid_until_ns=3 * LEASE_NS),
    )
    candidate = election(store)
    candidate.poll(0)
    store.late = True
    candidate.poll(RENEW_NS)
    candidate.step_down()
    store.ready = True
    candidate.poll(RENEW_NS + 1)
    assert candidate.stance is Stance.STANDBY


def test_an_answer_from_before_standby_does_not_count_after_standing_again() -> None:
    """What was asked under the old term cannot make it primary under that: it asks anew, and has a new term."""
    store = ScriptedStore(
        Held(term=1, valid_until_ns=LEASE_NS),
        Held(term=1, valid_until_ns=2 * LEASE_NS),
        Held(term=2, valid_until_ns=3 * LEASE_NS),
    )
    candidate = election(store)
    candidate.poll(0)
    store.late = True
    candidate.poll(RENEW_NS)
    candidate.step_down()
    candidate.stand(RENEW_NS + 1)
    store.ready = True
    stances = []
    candidate.poll(RENEW_NS + 2)
    stances.append((candidate.stance, candidate.term))
    store.ready = True
    candidate.poll(RENEW_NS + 3)
    stances.append((candidate.stance, candidate.term))
    assert stances == [(Stance.STANDBY, 1), (Stance.PRIMARY, 2)]
    assert store.asked[-1] == f"acquire {LEASE_NS} True"


def test_a_store_that_does_not_answer_leaves_what_was_stated_until_its_end() -> None:
    """A question without an answer neither ends nor lengthens a leadership, and the end is noticed without one."""
    store = ScriptedStore(Held(term=1, valid_until_ns=LEASE_NS), Held(term=1, valid_until_ns=2 * LEASE_NS))
    candidate = election(store)
    candidate.poll(0)
    store.late = True
    candidate.poll(RENEW_NS)
    until_ns = candidate.valid_until_ns
    candidate.poll(until_ns - 1)
    assert (candidate.stance, candidate.valid_until_ns) == (Stance.PRIMARY, until_ns)
    candidate.poll(until_ns)
    assert candidate.stance is Stance.STANDBY
    store.ready = True
    candidate.poll(until_ns + 1)
    assert candidate.stance is Stance.STANDBY, "its term ended with the word standby"


def test_a_lease_that_lapsed_or_was_given_up_is_remembered_as_over() -> None:
    """Before standby is said the next process is left word that this term is over; a new leadership takes it back."""
    words: list[bool] = []
    store = ScriptedStore(
        Held(term=1, valid_until_ns=LEASE_NS),
        Unknown(reason="gone"),
        Held(term=2, valid_until_ns=9 * LEASE_NS),
    )
    candidate = Election(store, holder="me", lease_ns=LEASE_NS, renew_ns=RENEW_NS, remember=words.append)
    candidate.poll(0)
    candidate.poll(LEASE_NS)
    assert words == [True]
    candidate.poll(candidate.next_ns)
    assert (words, candidate.term) == ([True, False], 2)


def test_a_successor_of_a_term_that_is_over_begins_a_new_one() -> None:
    """A restarted process whose predecessor said standby asks for a new term, though the lease is still its own."""
    store = ScriptedStore(Held(term=2, valid_until_ns=LEASE_NS))
    Election(store, holder="me", lease_ns=LEASE_NS, renew_ns=RENEW_NS, new_term=True).poll(0)
    assert store.asked == [f"acquire {LEASE_NS} True"]
