"""The stop ladder of one component: the stop signal, a bounded wait, SIGKILL, and SIGKILL again on what survives it.

`Work` is what one step works on; `Ladder` adds every way in which a run is brought to its end. `component` decides
when. Both live for one call of `component.step`.
"""

from typing import assert_never

from node_manager.core.actions import Action, CancelPreStart, CancelSpawn, KillTree, Log, Signal
from node_manager.core.changed import replace
from node_manager.core.facts import is_leased
from node_manager.core.intent import Rule
from node_manager.core.run import Phase, Run
from node_manager.core.spec import LEASE_MARGIN_NS, NS_PER_S, ComponentSpec, KillScope
from node_manager.core.states import TRANSITIONS, Aim, ComponentState, State, rule_of

SIGKILL = 9
SIGABRT = 6
UNKILLABLE_RECHECK_NS = 5 * NS_PER_S
"""How often SIGKILL is repeated on what survived it (uninterruptible sleep): often enough to see it end."""
RESUME_GRACE_NS = 1 * NS_PER_S
"""Time to leave for a component that is being stopped when the agent could not listen: it is ready to run at once."""
MAX_EXTENSION_NS = 600 * NS_PER_S
"""Bound on all EXTEND_TIMEOUT_USEC of one stop together: a stop ends, however hopeful the component is."""


class Work:
    """One step under way: the state so far and the actions so far."""

    __slots__ = ("actions", "now", "spec", "state")

    def __init__(self, spec: ComponentSpec, state: ComponentState, now: int) -> None:
        self.spec = spec
        self.state = state
        self.now = now
        self.actions: list[Action] = []

    def set_run(self, run: Run) -> None:
        """Remember the run as it is now."""
        if run is not self.state.run:
            self.state = replace(self.state, run=run)

    def enter(self, new: State, reason: str) -> None:
        """Change the state along the table, and say so. The same state again only takes the new reason."""
        old = self.state.state
        if old is new and new is not State.STARTING:
            self.state = replace(self.state, reason=reason)
            return
        assert old is new or (old, new) in TRANSITIONS, (old, new)
        self.state = replace(self.state, state=new, reason=reason, since_ns=self.now)
        self.log(
            "component.state_changed",
            old=old.value,
            new=new.value,
            reason=reason,
            rule=rule_of(self.state).value,
            generation=self.state.generation,
        )

    def log(self, event: str, **fields: str | int | bool | None) -> None:
        """Add an entry to the event history."""
        self.actions.append(Log(event=event, component=self.spec.name, fields=tuple(fields.items())))


class Ladder(Work):
    """See the module."""

    __slots__ = ()

    def stop(self, aim: Aim, reason: str) -> None:
        """Begin to end the run, or give a stop under way the aim DOWN: the last word that says down holds."""
        run = self.state.run
        assert run is not None
        if self.state.aim is not Aim.NONE:
            assert aim is Aim.DOWN, "only a word that says down comes during a stop"
            self.state = replace(self.state, aim=aim)
            self.hurry(run, reason)
            return
        by_hold = aim is Aim.DOWN and self.state.want.rule is Rule.OPERATOR_HOLD
        self.state = replace(self.state, aim=aim, ending=reason if by_hold else f"stopped by the agent: {reason}")
        match run.phase:
            case Phase.CHECK:
                self.state = replace(self.state, reason=reason)
                self.actions.append(CancelPreStart(component=self.spec.name, generation=self.state.generation))
            case Phase.SPAWN:
                self.state = replace(self.state, reason=reason)
                self.actions.append(CancelSpawn(component=self.spec.name, generation=self.state.generation))
            case Phase.LIVE:
                self.signal_stop(run, reason)
            case Phase.TREE:
                pass  # it is being killed already
            case _ as never:
                assert_never(never)

    def signal_stop(self, run: Run, reason: str) -> None:
        """Send the stop signal, and set the time for SIGKILL."""
        timeout_ns = self.spec.stop.timeout_ns
        self.state = replace(
            self.state, deadline_ns=self.now + timeout_ns, stop_by_ns=self.now + timeout_ns + MAX_EXTENSION_NS
        )
        self.enter(State.STOPPING, reason)
        aborts = self.state.aim is Aim.RETRY and self.spec.stop.abort_first
        number = SIGABRT if aborts else self.spec.stop.signal
        self.actions.append(Signal(component=self.spec.name, generation=self.state.generation, signal=number))
        self.hurry(run, reason)

    def hurry(self, run: Run, reason: str) -> None:
        """Bring SIGKILL forward where a lease or the node leaves less time than the stop's own time-out."""
        deadline_ns = self.state.deadline_ns
        if self.state.state is not State.STOPPING or deadline_ns is None:
            return
        if self.state.want.kill:
            deadline_ns = self.now
        if run.lease_until_ns is not None:
            deadline_ns = min(deadline_ns, run.lease_until_ns - self.spec.stop.kill_timeout_ns - LEASE_MARGIN_NS)
        self.state = replace(self.state, deadline_ns=deadline_ns)
        if deadline_ns <= self.now:
            self.kill(reason)

    def extend(self, run: Run, extend_ns: int | None) -> None:
        """Give a stop more time (EXTEND_TIMEOUT_USEC): never a leased component's, never beyond the bound."""
        deadline_ns, stop_by_ns = self.state.deadline_ns, self.state.stop_by_ns
        leased = run.lease_until_ns is not None or any(is_leased(fact) for fact in self.spec.run_while)
        if extend_ns is None or leased or self.state.state is not State.STOPPING:
            return
        assert deadline_ns is not None
        assert stop_by_ns is not None
        self.state = replace(self.state, deadline_ns=max(deadline_ns, min(self.now + extend_ns, stop_by_ns)))

    def put_off(self, run: Run, duration_ns: int) -> None:
        """Give back the time in which a stop under way could not be heard; a lease's end gives nothing back."""
        deadline_ns, stop_by_ns = self.state.deadline_ns, self.state.stop_by_ns
        if self.state.state is not State.STOPPING:
            return
        assert deadline_ns is not None
        assert stop_by_ns is not None
        # It may have stood still with the agent: it has a little time from now to leave by itself.
        at_least = self.now + min(self.spec.stop.timeout_ns, RESUME_GRACE_NS)
        self.state = replace(
            self.state,
            deadline_ns=max(deadline_ns + duration_ns, at_least),
            stop_by_ns=max(stop_by_ns + duration_ns, at_least),
        )
        self.hurry(run, self.state.reason)

    def kill(self, reason: str) -> None:
        """Send SIGKILL to the kill scope."""
        self.state = replace(self.state, deadline_ns=self.now + self.spec.stop.kill_timeout_ns)
        self.enter(State.KILLING, reason)
        self.send_kill()

    def kill_again(self) -> None:
        """Repeat SIGKILL on what survived it: nothing is started over it, and status says why."""
        self.state = replace(self.state, deadline_ns=self.now + UNKILLABLE_RECHECK_NS)
        self.enter(State.KILLING, "unkillable: SIGKILL was sent and it is still there")
        self.send_kill()

    def clear_tree(self, run: Run, reason: str) -> None:
        """Kill what the main process left behind, now that there is no main process."""
        self.set_run(replace(run, phase=Phase.TREE, pid=None))
        self.kill(reason)

    def send_kill(self) -> None:
        """Send SIGKILL once."""
        name, generation = self.spec.name, self.state.generation
        run = self.state.run
        assert run is not None
        if self.clears_tree() or run.phase is Phase.TREE:
            self.actions.append(KillTree(component=name, generation=generation))
        else:
            self.actions.append(Signal(component=name, generation=generation, signal=SIGKILL))

    def clears_tree(self) -> bool:
        """Tell whether nothing of its tree may outlive the main process."""
        return self.spec.stop.kill_scope is KillScope.TREE or self.state.want.clear_tree

    def must_clear(self) -> bool:
        """Tell whether something is left that has to be killed before anything else may happen."""
        return self.state.litter and self.clears_tree()
