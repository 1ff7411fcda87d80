"""The provisioner of the reference: does nothing but beat, while its lease holds."""

from node_manager.reference.fence import Fence
from node_manager.reference.loop import EXIT_FENCED, EXIT_OK, Context

FACT = "lease.provisioner"


class Provisioner:
    """Component. Ends with EXIT_FENCED when the validity of its lease passes."""

    def __init__(self, context: Context) -> None:
        self.exit_status: int | None = None
        self._client = context.client
        self._journal = context.journal
        self._fence = Fence(FACT, context.settings)
        self._client.set_ready(True)
        self._client.set_status(f"idle under token {self._fence.term}")

    def tick(self, now_ns: int) -> int:
        """See Component."""
        self._fence.heed(self._client.agent.facts)
        if why := self._fence.why_over(now_ns):
            self._journal.say(f"fenced: {why}")
            self.exit_status = EXIT_FENCED
        return self._fence.next_ns(now_ns)

    def terminate(self) -> None:
        """See Component."""
        self._client.set_stopping()
        self.exit_status = EXIT_OK

    def close(self) -> None:
        """See Component: there is nothing."""
