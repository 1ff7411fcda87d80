"""The planted faults: each is one small change of the core, of the recorder, or of the modelled shell and programs."""

from dataclasses import dataclass

CORE = "node_manager/core/"
SHELL = "tests/simulation/"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted fault: in `file`, `old` (which stands there once) becomes `new`."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "generation check dropped",
        CORE + "component.py",
        "if self.state.run is not None and event.generation == self.state.generation:",
        "if self.state.run is not None:",
    ),
    Mutation("stop budget forgotten", CORE + "facts.py", "budget_ns = stop_budget_ns(spec)", "budget_ns = 0"),
    Mutation(
        "lease margin zero, kill at the lease's end",
        CORE + "ladder.py",
        "run.lease_until_ns - self.spec.stop.kill_timeout_ns - LEASE_MARGIN_NS)",
        "run.lease_until_ns + 10 * LEASE_MARGIN_NS)",
    ),
    Mutation(
        "term ignored",
        CORE + "facts.py",
        "if said.term < table.highest.get(said.fact, 0):",
        "if said.term < 0:",
    ),
    Mutation(
        "standby does not reach whoever depends on it",
        CORE + "turn.py",
        "                self.mark(name)\n            self.actions.append(SendLevels",
        "                pass\n            self.actions.append(SendLevels",
    ),
    Mutation(
        "expired lease still believed",
        CORE + "facts.py",
        "if now < fact.valid_until_ns - budget_ns:",
        "if now < fact.valid_until_ns + 60 * NS_PER_S:",
    ),
    Mutation(
        "a new term does not restart",
        CORE + "component.py",
        "            elif self.state.aim is Aim.NONE:\n                # The stop stays",
        "            elif self.now < 0:\n                # The stop stays",
    ),
    Mutation(
        "restrictive change waits for the disk",
        CORE + "writeback.py",
        "        if not latches.is_permissive(facts, item.change):\n            facts",
        "        if latches.is_permissive(facts, item.change) and False:\n            facts",
    ),
    Mutation(
        "permissive change acts before it is durable",
        CORE + "writeback.py",
        "        if not latches.is_permissive(facts, item.change):\n            facts",
        "        if True:\n            facts",
    ),
    Mutation(
        "written changes are forgotten",
        CORE + "writeback.py",
        "replace(wb, durable=facts, pending=left,",
        "replace(wb, pending=left,",
    ),
    Mutation(
        "a failed write is not tried again",
        CORE + "writeback.py",
        "retry_at_ns=now + RETRY_NS)",
        "retry_at_ns=None)",
    ),
    Mutation(
        "backoff has no delay",
        CORE + "backoff.py",
        "max(ended_ns, started_ns + delay_ns(spec, failures, jitter))",
        "ended_ns",
    ),
    Mutation(
        "backoff's deadline is not set",
        CORE + "component.py",
        "            self.state = replace(self.state, deadline_ns=state.not_before_ns)\n",
        "",
    ),
    Mutation(
        "a stop does not end what starts",
        CORE + "component.py",
        "        if self.state.aim is not Aim.NONE:\n            self.signal_stop(run, self.state.reason)\n"
        "            return\n",
        "",
    ),
    Mutation(
        "a stop in BACKOFF is lost",
        CORE + "component.py",
        "        elif not want.up:\n            self.idle(State.STOPPED, want.reason)\n        elif state.hold",
        "        elif not want.up and state.state is not State.BACKOFF:\n"
        "            self.idle(State.STOPPED, want.reason)\n        elif state.hold",
    ),
    Mutation(
        "SIGKILL is never sent",
        CORE + "component.py",
        '            self.kill(f"{self.state.reason}; did not stop in time")',
        "            self.state = replace(self.state, deadline_ns=self.now + 3600 * NS_PER_S)",
    ),
    Mutation(
        "the tree is not cleared before the next run",
        CORE + "ladder.py",
        "return self.state.litter and self.clears_tree()",
        "return False",
    ),
    Mutation(
        "the kill scope of the worker is the tree",
        CORE + "ladder.py",
        "return self.spec.stop.kill_scope is KillScope.TREE or self.state.want.clear_tree",
        "return True",
    ),
    Mutation(
        "what is found running is started again",
        CORE + "component.py",
        "if self.state.run is not None or self.state.state is not State.STOPPED:\n            return",
        "if True:\n            return",
    ),
    Mutation(
        "a spawn is not cancelled",
        CORE + "ladder.py",
        "self.actions.append(CancelSpawn(component=self.spec.name, generation=self.state.generation))",
        "pass",
    ),
    Mutation(
        "exit 79 does not latch",
        CORE + "hostlife.py",
        "    if epoch is None or epoch <= turn.node.in_force.released_epoch:",
        "    if True:",
    ),
    Mutation(
        "the controller's word needs no newer epoch",
        CORE + "latches.py",
        "    if epoch <= facts.epoch_seen:\n        return None\n",
        "",
    ),
    Mutation(
        "the two latches are one",
        CORE + "latches.py",
        "            return replace(facts, controller_latch=None, epoch_seen=change.epoch)",
        "            return replace(facts, controller_latch=None, operator_latch=None, epoch_seen=change.epoch)",
    ),
    Mutation(
        "recommission is not remembered",
        CORE + "latches.py",
        "                doubt=None,\n                released_epoch=max(facts.released_epoch, facts.epoch_seen),",
        "                doubt=None,\n                released_epoch=0,",
    ),
    Mutation(
        "the stall is not discounted, deadlines pass",
        CORE + "component.py",
        "            case Stalled():\n                self.stalled(event)",
        "            case Stalled():\n                pass",
    ),
    Mutation(
        "the fuse is not armed anew",
        SHELL + "agent.py",
        "            self.keep_fuses()\n",
        "",
    ),
    Mutation(
        "no last look at the clock before exec, no group kept empty",
        SHELL + "agent.py",
        "            if action.not_after_ns is not None and host.clock() >= action.not_after_ns:\n",
        "            if action.not_after_ns is not None and False:\n",
    ),
    Mutation(
        "a child before exec outlives its agent",
        SHELL + "agent.py",
        "            if self.dead or key not in self.spawning or host.boot != boot:\n",
        "            if host.boot != boot:\n",
    ),
    Mutation(
        "a command is answered before the write",
        CORE + "turn.py",
        "        self.actions.append(WriteFacts(seq=seq,",
        "        if command is not None:\n            self.reply(command.id, answer)\n"
        "        self.actions.append(WriteFacts(seq=seq,",
    ),
)
