"""The work of one step of the node: the state so far, the actions so far, and whom the ledger must look at again.

A turn lives for one call of `node.step` and is invisible outside: the step as a whole is a pure function. The members
are copied once at its beginning and are the turn's own until `result` hands them out.
"""

from node_manager.core import claims, component, facts, latches
from node_manager.core import writeback as wb
from node_manager.core.actions import Action, Finish, Log, Reply, SendLevels, WriteFacts
from node_manager.core.changed import replace
from node_manager.core.durable import DurableFacts
from node_manager.core.events import Command
from node_manager.core.happenings import ComponentEvent, Wanted
from node_manager.core.intent import Rule, Want
from node_manager.core.latches import Change
from node_manager.core.nodestate import NodePhase, NodeState, drain_of, remember
from node_manager.core.states import past_of
from node_manager.core.writeback import Pending

MAX_ROUNDS_PER_MEMBER = 32
"""Bound on rulings in one step for each member: the ledger must come to rest, or it is our own bug."""


class Turn:
    """See the module."""

    def __init__(self, node: NodeState, now: int) -> None:
        self.members = dict(node.members)
        self.node = replace(node, members=self.members)
        self.now = now
        self.actions: list[Action] = []
        self._before = node.members
        self._dirty: dict[str, None] = {}

    def result(self) -> tuple[NodeState, tuple[Action, ...]]:
        """Return the new state and the actions, in order."""
        return self.node, tuple(self.actions)

    # --- components ---------------------------------------------------------------------------------------------

    def feed(self, name: str, event: ComponentEvent) -> None:
        """Let one component take an event, and mark whoever has to be looked at again because of it."""
        member = self.members[name]
        old = member.state
        new, actions = component.step(member.spec, old, event, self.now)
        self.actions.extend(actions)
        if new is old:
            return
        self.members[name] = replace(member, state=new)
        if new.forced is not old.forced or (new.run is None) is not (old.run is None):
            self.mark(name)
            self.mark(*(self.node.spec_of(name).after if self.node.phase is NodePhase.STOPPING else ()))
        if new.ready is not old.ready or new.state is not old.state:
            self.mark(*self.node.index.dependants.get(name, ()))
            self.mark(*self.node.index.followers.get(f"component.{name}.ready", ()))

    def began(self, name: str) -> bool:
        """Tell whether a run of this component began in this very step."""
        old, state = self._before.get(name), self.members[name].state
        return state.run is not None and (old is None or old.state.generation != state.generation)

    def mark(self, *names: str) -> None:
        """Have the ledger look at these components again before the step ends."""
        for name in names:
            if name in self.members:
                self._dirty[name] = None

    def mark_all(self) -> None:
        """Have the ledger look at every component again."""
        self.mark(*self.members)

    def settle(self) -> None:
        """Apply the ledger until nothing changes any more."""
        bound = MAX_ROUNDS_PER_MEMBER * (len(self.members) + 1)
        while self._dirty:
            bound -= 1
            assert bound > 0, "the ledger does not come to rest"
            name = next(iter(self._dirty))
            del self._dirty[name]
            member = self.members[name]
            until = claims.condition_until_ns(self.node, member.spec, self.now)
            if until != member.condition_until_ns:
                member = self.members[name] = replace(member, condition_until_ns=until)
            want = self.ruling(name)
            if want != member.state.want:
                self.feed(name, Wanted(want=want))
            self._drop_if_gone(name)
        self._finish()

    def ruling(self, name: str) -> Want:
        """Return what the ledger says about a component at this instant."""
        return claims.want(self.node, self.members[name], self.now)

    def leave_behind(self) -> None:
        """End without what even SIGKILL does not end, and say what that is."""
        left = [name for name, member in self.members.items() if member.state.run is not None]
        self.log("agent.left_behind", components=", ".join(left))
        self.node = replace(self.node, finished=True)
        self.actions.append(Finish())

    def _drop_if_gone(self, name: str) -> None:
        member = self.members[name]
        if member.removed and member.state.run is None:
            del self.members[name]
            self._dirty.pop(name, None)
            self.node = replace(self.node, past=remember(self.node.past, past_of(name, member.state)))
            self.log("component.removed", name)

    def _finish(self) -> None:
        if self.node.phase is NodePhase.STOPPING and not self.node.finished:
            if any(member.state.run is not None for member in self.members.values()):
                return
            self.node = replace(self.node, finished=True)
            self.actions.append(Finish())

    # --- facts and latches ----------------------------------------------------------------------------------------

    def change(self, change: Change, *, command: Command | None = None, answer: str = "") -> None:
        """Put a change of the durable record under way; it is in force at once where it is restrictive."""
        seq = self.node.writeback.next_seq
        item = Pending(seq=seq, change=change, command=command, answer=answer)
        before = self.node.in_force
        self.node = replace(self.node, writeback=wb.add(self.node.writeback, item))
        self.actions.append(WriteFacts(seq=seq, facts=wb.target(self.node.writeback)))
        self.in_force_changed(before)

    def target(self) -> DurableFacts:
        """Return the record that will be on the disk: a statement is compared with it, so that none is repeated."""
        return wb.target(self.node.writeback)

    def in_force_changed(self, before: DurableFacts) -> None:
        """React to new latches, holds or maintenance."""
        if before == self.node.in_force:
            return
        self.mark_all()
        self.tell_host_state()

    def tell_host_state(self) -> None:
        """Tell what becomes of the host to whoever takes part in a drain or states the host's facts."""
        for name, member in self.members.items():
            if drain_of(member.spec) is not None:
                self.actions.append(SendLevels(component=name))

    def state_fact(self, said: facts.Statement, max_lease_ns: int) -> None:
        """Take an authority's statement, or log why it is not believed."""
        why = facts.refusal(self.node.table, said, max_lease_ns, self.now)
        if why is not None:
            self.log("fact.refused", said.authority, fact=said.fact, why=why)
            return
        old = self.node.table.leased.get(said.fact)
        self.node = replace(self.node, table=facts.state(self.node.table, said, self.now))
        new = self.node.table.leased[said.fact]
        if old is None or (old.value, old.term) != (said.value, said.term):
            self.log("fact.changed", said.authority, fact=said.fact, value=said.value, term=said.term)
        for name in self.node.index.followers.get(said.fact, ()):
            if name in self.members and facts.is_news(old, new, self.node.spec_of(name), self.now):
                self.mark(name)
            self.actions.append(SendLevels(component=name))

    def expire(self) -> None:
        """Let conditions end whose time has come, before anything else is decided at this instant."""
        for fact in self.node.table.leased:
            for name in self.node.index.followers.get(fact, ()):
                until = self.members[name].condition_until_ns if name in self.members else None
                if until is not None and until <= self.now:
                    self.mark(name)
        if self._dirty:
            self.settle()

    # --- answers --------------------------------------------------------------------------------------------------

    def log(self, event: str, name: str | None = None, **fields: str | int | bool | None) -> None:
        """Add an entry to the event history."""
        self.actions.append(Log(event=event, component=name, fields=tuple(fields.items())))

    def reply(self, command_id: int | None, detail: str) -> None:
        """Answer a command that is done."""
        if command_id is not None:
            self.actions.append(Reply(id=command_id, ok=True, detail=detail))

    def refuse(self, command: Command, detail: str, *, rule: Rule | None = None) -> None:
        """Answer a command that is refused, and note that in the history."""
        self._refuse(command.id, detail, verb=command.verb.value, by=command.by, name=command.component, rule=rule)

    def refuse_reload(self, command_id: int | None, why: str) -> None:
        """Answer a reload of the configuration that is refused; nobody may have asked for it."""
        if command_id is not None:
            self._refuse(command_id, f"cannot reload: {why}", verb="reload")

    def _refuse(
        self,
        command_id: int,
        detail: str,
        *,
        verb: str,
        by: str | None = None,
        name: str | None = None,
        rule: Rule | None = None,
    ) -> None:
        word = None if rule is None else rule.value
        known = name if name in self.members else None
        self.log("command.refused", known, verb=verb, by=by, rule=word, detail=detail)
        self.actions.append(Reply(id=command_id, ok=False, detail=detail, rule=word))

    def host_is(self, fact: str) -> bool:
        """Tell whether the host has reached `host.draining`, `host.drained` or `host.decommissioned`."""
        return latches.reached(self.node.in_force, fact)
