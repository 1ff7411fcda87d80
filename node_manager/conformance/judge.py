"""What each record is judged by, whatever scene is played."""

from collections.abc import Mapping

from node_manager.conformance.points import Verdicts
from node_manager.core.events import Beat, HostState, Leadership
from node_manager.core.spec import NS_PER_S

HELLO_WITHIN_NS = 5 * NS_PER_S
SLACK_NS = 2 * NS_PER_S
"""What a busy machine may add to an interval without a verdict."""
RATE_MARGIN_DIVISOR = 1000
"""A validity lacks at least the share of the lease by which clock rates may differ."""


class Judge:
    """Turns what one run of a program says into verdicts.

    `max_lease_ns` is the longest validity that an agent believes; `lease_ns` the length of the program's lease, where
    it is known.
    """

    def __init__(self, verdicts: Verdicts, *, max_lease_ns: int, lease_ns: int | None) -> None:
        self.verdicts = verdicts
        self._max_lease_ns = max_lease_ns
        self._lease_ns = lease_ns
        self._term: int | None = None
        self._leads = False
        self._led_under: int | None = None
        """The term of its last leadership."""

    def speaker(self, pid: int | None, main_pid: int) -> None:
        """A record came from this process."""
        self.verdicts.judge("speaker", f"process {pid} spoke; the main process is {main_pid}", holds=pid == main_pid)

    def malformed(self, reason: str) -> None:
        """A record broke the grammar."""
        self.verdicts.fail("records", reason)

    def first_record(self, fields: Mapping[str, str], component: str, *, late_ns: int) -> None:
        """The first record on a connection, so long after it was accepted."""
        if "XCE_HEARTBEAT" not in fields:
            self.verdicts.fail("hello", f"the first record on a connection is no hello, but {', '.join(fields)[:60]}")
        elif fields["COMPONENT"] != component:
            self.verdicts.fail("hello", f"it says that it is {fields['COMPONENT'][:40]!r}, not {component!r}")
        elif late_ns <= HELLO_WITHIN_NS:
            self.verdicts.hold("hello")

    def no_hello_yet(self, for_ns: int) -> None:
        """A connection has been silent for so long."""
        if for_ns > HELLO_WITHIN_NS:
            self.verdicts.fail("hello", f"no hello within {HELLO_WITHIN_NS / NS_PER_S:g} s of connecting")

    def interval(self, gap_ns: int, promised_ns: int) -> None:
        """Between two records lay so much time."""
        late = gap_ns > max(2 * promised_ns, promised_ns + SLACK_NS)
        detail = f"{gap_ns / NS_PER_S:.1f} s without a record; promised: {promised_ns / NS_PER_S:g} s"
        self.verdicts.judge("promise", detail, holds=not late)

    def silence(self, for_ns: int, promised_ns: int) -> None:
        """It has been silent for so long, and still is."""
        if for_ns > 3 * promised_ns + SLACK_NS:
            self.verdicts.fail("promise", f"silent for more than 3 intervals of {promised_ns / NS_PER_S:g} s")

    def record(self, beat: Beat, fields: Mapping[str, str], at_ns: int, *, prompt: bool) -> None:
        """A record that keeps the grammar. `prompt`: it was read as soon as it came."""
        self.verdicts.hold("records")
        self._statements(beat, fields)
        if beat.leadership is not None and beat.term is not None:
            self._leadership(beat, beat.term, at_ns, prompt=prompt)

    def _statements(self, beat: Beat, fields: Mapping[str, str]) -> None:
        missing = None
        if beat.leadership is not None and beat.term is None:
            missing = "LEADERSHIP without TERM"
        elif beat.leadership is Leadership.PRIMARY and beat.valid_until_ns is None:
            missing = "LEADERSHIP=primary without VALID_UNTIL_NS"
        elif beat.leadership is None and ("TERM" in fields or "VALID_UNTIL_NS" in fields):
            missing = "TERM or VALID_UNTIL_NS without LEADERSHIP"
        elif beat.host_state is not None and beat.epoch is None:
            missing = "HOST_STATE without EPOCH"
        elif beat.host_state is None and "EPOCH" in fields:
            missing = "EPOCH without HOST_STATE"
        elif beat.host_state is not HostState.DRAINING and "DRAIN_DEADLINE_NS" in fields:
            missing = "DRAIN_DEADLINE_NS without HOST_STATE=draining"
        for lease in beat.leases:
            if lease.token is None or (lease.held and lease.valid_until_ns is None):
                missing = f"LEASE.{lease.name} without its TOKEN or VALID_UNTIL_NS"
        self.verdicts.judge("statements", missing or "", holds=missing is None)

    def _leadership(self, beat: Beat, term: int, at_ns: int, *, prompt: bool) -> None:
        leads = beat.leadership is Leadership.PRIMARY
        if self._term is not None and term < self._term:
            self.verdicts.fail("terms", f"TERM={term} after TERM={self._term}")
        elif leads and not self._leads and term == self._led_under:
            self.verdicts.fail("terms", f"a new leadership under TERM={term}, which ended with standby")
        else:
            self.verdicts.hold("terms")
        self._term, self._leads = max(term, self._term or 0), leads
        if leads:
            self._led_under = term
            if beat.valid_until_ns is not None:
                self._validity(beat.valid_until_ns - at_ns, prompt=prompt)

    def _validity(self, left_ns: int, *, prompt: bool) -> None:
        longest_ns = self._max_lease_ns
        if self._lease_ns is not None:
            longest_ns = min(longest_ns, self._lease_ns - self._lease_ns // RATE_MARGIN_DIVISOR)
        if left_ns > longest_ns:
            detail = f"valid for {left_ns / NS_PER_S:.3f} s; at most {longest_ns / NS_PER_S:.3f} s are right"
            self.verdicts.fail("validity", detail)
        elif left_ns < -SLACK_NS and prompt:
            self.verdicts.fail("validity", f"it had passed {-left_ns / NS_PER_S:.1f} s before it was stated")
        else:
            self.verdicts.hold("validity")
