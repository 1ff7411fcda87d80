"""The lease keeper: holds `lease.NAME` through the same store as the controller, and states it with its token."""

import re

from node_manager.reference.election import Stance
from node_manager.reference.loop import EXIT_OK, Context
from node_manager.reference.settings import SettingsError
from node_manager.reference.store import stand

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
"""What may follow `lease.` in the name of a fact."""


class Keeper:
    """Component. Never gives the lease back: it does not know who depends on it."""

    def __init__(self, context: Context, name: str) -> None:
        if not NAME.fullmatch(name):
            raise SettingsError(f"cannot keep lease {name!r}: a name has a-z, 0-9 and -, at most 64 of them")
        self.exit_status: int | None = None
        self._name = name
        self._client = context.client
        self._journal = context.journal
        settings = context.settings
        holder = settings.holder or f"{settings.host}/{name}"
        self._candidate = stand(context, fact=f"lease.{name}", file_name=f"{name}.lease", holder=holder)
        self._election = self._candidate.election
        self._held: bool | None = None

    def tick(self, now_ns: int) -> int:
        """See Component."""
        election = self._election
        election.poll(now_ns)
        held = election.stance is Stance.PRIMARY
        if held:
            self._client.set_lease(self._name, True, election.term, election.valid_until_ns)
        elif election.stance is Stance.STANDBY:
            self._client.set_lease(self._name, False)
        if election.stance is not Stance.UNREAD:
            self._client.set_ready(True)
            if held is not self._held:
                self._held = held
                self._journal.say(f"lease {self._name} is {'held' if held else 'not held'}, token {election.term}")
        self._client.set_status(election.trouble or f"{'held' if held else 'not held'}, token {election.term}")
        return min(election.next_ns, election.valid_until_ns) if held else election.next_ns

    def terminate(self) -> None:
        """See Component: says that it is lost, stops renewing, and lets the record run out."""
        self._client.set_stopping()
        self._election.step_down()
        self.exit_status = EXIT_OK

    def close(self) -> None:
        """See Component."""
        self._candidate.close()
