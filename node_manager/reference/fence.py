"""The second line of a leased component: it knows itself when its lease is over, whatever becomes of its agent."""

from collections.abc import Mapping

from node_manager.reference.loop import MAX_WAIT_NS
from node_manager.reference.settings import Settings, SettingsError

Facts = Mapping[str, tuple[bool | None, int | None, int | None]]


class Fence:
    """Validity of one leased fact under the term this process was started with (XCE_TERM)."""

    def __init__(self, fact: str, settings: Settings) -> None:
        if settings.term is None or settings.lease_valid_until_ns is None:
            raise SettingsError(
                f"cannot start without XCE_TERM and XCE_LEASE_VALID_UNTIL_NS: the node manager gives them while {fact} "
                "is true; run this component under it"
            )
        self._fact = fact
        self._off = settings.faults.unfenced
        self.term = settings.term
        self.valid_until_ns = settings.lease_valid_until_ns
        self._ended = ""

    def heed(self, facts: Facts) -> None:
        """Take the agent's latest word: a renewal, or the end."""
        value, term, valid_until_ns = facts.get(self._fact, (None, None, None))
        if value is False:
            self._ended = f"{self._fact} is no longer true"
        elif term is not None and term != self.term:
            self._ended = f"{self._fact} has term {term}, this process was started under {self.term}"
        elif value is True and valid_until_ns is not None:
            self.valid_until_ns = max(self.valid_until_ns, valid_until_ns)

    def next_ns(self, now_ns: int) -> int:
        """When to ask again at the latest."""
        return now_ns + MAX_WAIT_NS if self._off else self.valid_until_ns

    def why_over(self, now_ns: int) -> str:
        """Why it may do nothing any more; empty while it may. What has ended stays ended."""
        if self._off:
            return ""
        if not self._ended and now_ns >= self.valid_until_ns:
            self._ended = f"the validity of {self._fact} has passed"
        return self._ended
