"""The controller: elects its primary through the lease, states it, and serves the others over TCP.

It keeps every promise of an authority: nothing about leadership before the store was read; a validity counted from
before the renewal; a stepping down that says standby, stops renewing, and leaves the lease to run out.
"""

import zlib
from enum import Enum

from node_manager.reference.clock import NS_PER_S, boottime_ns
from node_manager.reference.cluster import Cluster
from node_manager.reference.election import Stance
from node_manager.reference.guarded import write_whole
from node_manager.reference.lines import Connection, LineServer, Message
from node_manager.reference.loop import EXIT_OK, Context, StartError, publish_port
from node_manager.reference.register import Refused
from node_manager.reference.requests import Requests
from node_manager.reference.store import stand

MAX_CONNECTIONS = 300
"""Every host of a full register, its scheduler, and people; well below the usual 1024 descriptors."""
SWEEP_NS = NS_PER_S
LEAVE_NS = NS_PER_S
"""How long an ending controller waits to hear that its scheduler is stopped, to give the lease back early."""
DEPENDANT = "scheduler"
AT_REST = frozenset({"stopped", "exited", "failed"})


QUIET_ENDS = frozenset({"closed by the peer", "stopping"})


class _Watch(Enum):
    """The way to an early release, after stepping down."""

    NONE = "none"
    SAYING = "saying"
    WAITING = "waiting"
    RELEASING = "releasing"


class Controller:
    """Component."""

    def __init__(self, context: Context) -> None:
        self.exit_status: int | None = None
        settings = context.settings
        self._client = context.client
        self._journal = context.journal
        state_dir = settings.state_dir
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._server = LineServer(
            context.loop, settings.listen, limit=MAX_CONNECTIONS, on_message=self._received, on_close=self._closed
        )
        holder = settings.holder or f"{settings.host}/{self._server.address}"
        self._stood_down = state_dir / f"controller-{zlib.crc32(holder.encode()):08x}.standby"
        try:
            self._candidate = stand(
                context,
                fact="controller.primary",
                file_name="controller.lease",
                holder=holder,
                willing=not self._stood_down.exists(),
            )
        except (OSError, StartError):
            self._server.close()
            raise
        self.election = self._candidate.election
        publish_port(context, self._server.address.port)
        self._cluster = Cluster(
            state_dir / "register.json", writer=holder, grace_ns=settings.grace_ns, journal=self._journal
        )
        self._host = settings.host
        self._requests = Requests(self, self._cluster)
        self._said: tuple[Stance, int, int] | None = None
        self._watch = _Watch.NONE
        self._troubled = ""
        self._leave_ns: int | None = None
        self._next_sweep_ns = 0
        self._journal.say(f"listening on {self._server.address} as {holder}, willing={self.election.willing}")

    # --- the loop ----------------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> int:
        """See Component."""
        self._watch_dependant()
        self.election.poll(now_ns)
        if self._watch is _Watch.RELEASING and not self.election.releasing:
            self._watch = _Watch.NONE
            if self.election.released:
                self._journal.say(f"lease given back early: {DEPENDANT} is reported stopped")
        self._say()
        next_ns = self.election.next_ns
        if self.election.stance is Stance.PRIMARY:
            self._cluster.lead(self.election.term)
            self._cluster.presence.expect(self._host, self._client.agent, now_ns)
            next_ns = min(next_ns, self.election.valid_until_ns)
        else:
            self._cluster.leave("this controller is not primary any more")
        if now_ns >= self._next_sweep_ns:
            self._next_sweep_ns = now_ns + SWEEP_NS
            self._server.sweep(now_ns)
        next_ns = min(next_ns, self._next_sweep_ns, self._cluster.tick(now_ns))
        if self._leave_ns is not None:
            if self._watch is _Watch.NONE or now_ns >= self._leave_ns:
                self._journal.say("stopped; a lease that it held ends by itself, if it was not given back")
                self.exit_status = EXIT_OK
            next_ns = min(next_ns, self._leave_ns)
        return next_ns

    def terminate(self) -> None:
        """See Component. The heartbeat goes on while it waits, which is for a second at most."""
        self._client.set_stopping()
        self._step_down()
        self._leave_ns = boottime_ns() + LEAVE_NS

    def close(self) -> None:
        """See Component."""
        self._cluster.leave("the controller stops")
        self._server.close()
        self._candidate.close()

    def _say(self) -> None:
        """State the leadership where it is known and has changed."""
        election = self.election
        said = (election.stance, election.term, election.valid_until_ns)
        if election.stance is Stance.UNREAD or said == self._said:
            self._status()
            return
        if self._said is None or self._said[:2] != said[:2]:
            self._journal.say(f"{election.stance.value} at term {election.term}")
        self._said = said
        if election.stance is Stance.PRIMARY:
            self._client.set_leadership(True, election.term, election.valid_until_ns)
        else:
            self._client.set_leadership(False, election.term)
        self._client.set_ready(True)
        self._status()

    def _status(self) -> None:
        trouble = self.election.trouble or self._cluster.trouble
        if trouble and trouble != self._troubled:
            self._journal.complain(trouble)
        self._troubled = trouble
        self._client.set_status(
            f"{self.election.stance.value}, term {self.election.term}" + (trouble and f"; {trouble}")
        )

    # --- stepping down -----------------------------------------------------------------------------------------

    def _step_down(self) -> None:
        if self.election.stance is Stance.PRIMARY:
            self._watch = _Watch.SAYING
        self.election.step_down()
        self._say()

    def _watch_dependant(self) -> None:
        """Give the lease back early, by the one rule that allows it: the dependant was reported stopped afterwards.

        "Afterwards" needs a change seen after standby was said: a "stopped" that was there before may be older than
        a start that is under way.
        """
        if self._watch not in {_Watch.SAYING, _Watch.WAITING}:
            return
        state = self._client.agent.components.get(DEPENDANT)
        if not self._client.connected or state is None or self.election.willing:
            self._watch = _Watch.NONE
        elif self._watch is _Watch.SAYING:
            if self._client.sent:
                self._watch = _Watch.NONE if state in AT_REST else _Watch.WAITING
        elif state == "stopped":
            self._watch = _Watch.RELEASING
            self.election.release()

    # --- asked by requests -------------------------------------------------------------------------------------

    def status(self) -> Message:
        """See Chair."""
        election = self.election
        return {
            "holder": election.holder,
            "stance": election.stance.value,
            "term": election.term,
            "valid_until_ns": election.valid_until_ns,
            "leader": election.leader,
            "willing": election.willing,
            "trouble": election.trouble or self._cluster.trouble,
            "connections": len(self._server.connections),
            "workers": len(self._cluster.workers),
            "scheduler": self._cluster.scheduler is not None,
        }

    def stand_down(self) -> None:
        """See Chair. Kept on the disk first: a restart must not undo an operator's word."""
        try:
            write_whole(self._stood_down, b"standby\n")
        except OSError as error:
            self._journal.say(f"cannot keep the order to be standby over a restart: {error}")
        self._journal.say("told to be standby")
        self._step_down()

    def stand(self) -> None:
        """See Chair. Raises Refused where the order to be standby cannot be removed from the disk."""
        try:
            self._stood_down.unlink(missing_ok=True)
        except OSError as error:
            raise Refused("unavailable", f"cannot stand: the order to be standby stays on the disk: {error}") from None
        self._journal.say("told to stand")
        if self._leave_ns is None:
            self.election.stand(boottime_ns())

    def _received(self, connection: Connection, message: Message) -> None:
        self._requests.serve(connection, message)

    def _closed(self, connection: Connection, reason: str) -> None:
        if reason not in QUIET_ENDS:
            self._journal.complain(f"connection ended: {reason}")
        self._requests.gone(connection)
