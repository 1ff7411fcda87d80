"""The planted faults: each is one small change of the core, of the recorder, or of the modelled shell and programs."""

from dataclasses import dataclass

CORE = "node_manager/core/"
RUNTIME = "node_manager/runtime/"
SHELL = "tests/simulation/"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted fault: in `file`, `old` (which stands there once) becomes `new`."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    # --- leases, terms and the fuse ----------------------------------------------------------------------------------
    Mutation(
        "stop budget forgotten",
        CORE + "facts.py",
        "budget_ns = stop_budget_ns(spec)",
        "budget_ns = 0",
    ),
    Mutation(
        "lease margin zero, kill at the lease's end",
        CORE + "ladder.py",
        "run.lease_until_ns - self.spec.stop.kill_timeout_ns - LEASE_MARGIN_NS)",
        "run.lease_until_ns + 10 * LEASE_MARGIN_NS)",
    ),
    Mutation(
        "expired lease still believed",
        CORE + "facts.py",
        "if now < fact.valid_until_ns - budget_ns:",
        "if now < fact.valid_until_ns + 60 * NS_PER_S:",
    ),
    Mutation(
        "a lease longer than allowed is believed",
        CORE + "facts.py",
        "if said.valid_until_ns > now + max_lease_ns:",
        "if said.valid_until_ns < 0:",
    ),
    Mutation(
        "an earlier agent's lease is prolonged",
        CORE + "facts.py",
        "            valid_until_ns=kept.valid_until_ns,\n",
        "            valid_until_ns=kept.valid_until_ns + 60 * NS_PER_S,\n",
    ),
    Mutation(
        "standby does not reach whoever depends on it",
        CORE + "turn.py",
        "                self.mark(name)\n            self.actions.append(SendLevels",
        "                pass\n            self.actions.append(SendLevels",
    ),
    Mutation(
        "term ignored",
        CORE + "facts.py",
        "if said.term < table.highest.get(said.fact, 0):",
        "if said.term < 0:",
    ),
    Mutation(
        "a renewal under the same term is refused",
        CORE + "facts.py",
        "    if said.term < table.highest.get(said.fact, 0):",
        "    if said.fact in table.highest and said.term <= table.highest[said.fact]:",
    ),
    Mutation(
        "a new term does not restart",
        CORE + "component.py",
        "            elif self.state.aim is Aim.NONE:\n                # The stop stays",
        "            elif self.now < 0:\n                # The stop stays",
    ),
    Mutation(
        "authority that frees its lease early accepted",
        SHELL + "programs.py",
        "        self.stepped_down, self.leads = True, False\n",
        "        self.stepped_down, self.leads = True, False\n        self.cluster.store.expires_ns = 0\n",
    ),
    Mutation(
        "adopted scheduler without its lease",
        CORE + "component.py",
        "            lease_until_ns=found.lease_until_ns,\n",
        "            lease_until_ns=None,\n",
    ),
    Mutation(
        "adopted scheduler without its term",
        CORE + "component.py",
        "            terms=found.terms,\n",
        "            terms=(),\n",
    ),
    Mutation(
        "leases are not handed on to the next agent",
        RUNTIME + "recording.py",
        "for fact in node.table.leased.values()",
        "for fact in list(node.table.leased.values())[:0]",
    ),
    Mutation(
        "fuse acknowledged after the spawn",
        SHELL + "effects.py",
        (
            "            host.arm_fuse(action.component, action.generation, "
            "action.lease_valid_until_ns - LEASE_MARGIN_NS)\n"
        ),
        (
            "            at_ns = action.lease_valid_until_ns - LEASE_MARGIN_NS\n"
            "            agent.later(20 * NS_PER_MS, lambda: host.arm_fuse(*key, at_ns))\n"
        ),
    ),
    Mutation(
        "the fuse is not armed anew",
        SHELL + "agent.py",
        "            self.effects.keep_fuses()\n",
        "",
    ),
    Mutation(
        "a lost fuse is not noticed",
        CORE + "component.py",
        '        if self.state.aim is Aim.NONE:\n            self.stop(Aim.RETRY, f"its fuse',
        '        if self.now < 0:\n            self.stop(Aim.RETRY, f"its fuse',
    ),
    Mutation(
        "a blown fuse does not keep its group empty",
        SHELL + "effects.py",
        "        if action.not_after_ns is not None and host.fuse_blown(*key):\n",
        "        if action.not_after_ns is not None and not key:\n",
    ),
    Mutation(
        "no last look at the clock before exec",
        SHELL + "effects.py",
        "starting.looked_ns >= starting.action.not_after_ns:",
        "starting.looked_ns < 0:",
    ),
    Mutation(
        "the last look leaves no time to stop",
        CORE + "facts.py",
        "        not_after_ns=until - stop_budget_ns(spec),",
        "        not_after_ns=until,",
    ),
    # --- what is durable, and whose it is ----------------------------------------------------------------------------
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
        "a retry of a write does not clear its time",
        CORE + "node.py",
        "replace(writeback, retry_at_ns=None)",
        "writeback",
    ),
    Mutation(
        "a command is answered before the write",
        CORE + "turn.py",
        "        self.actions.append(WriteFacts(seq=seq,",
        (
            "        if command is not None:\n"
            "            self.reply(command.id, answer)\n"
            "        self.actions.append(WriteFacts(seq=seq,"
        ),
    ),
    Mutation(
        "a write is acknowledged before the disk has it",
        SHELL + "effects.py",
        "        self.agent.later(self.rng.randrange(1, 5 * NS_PER_MS), lambda: self._synced(action))\n",
        (
            "        self.agent.post(FactsWritten(seq=action.seq))\n"
            "        self.agent.later(self.rng.randrange(1, 5 * NS_PER_MS), lambda: self._synced(action))\n"
        ),
    ),
    Mutation(
        "what an interrupted write left counts before the disk has it",
        SHELL + "agent.py",
        "        host.disk.sync()\n",
        "",
    ),
    Mutation(
        "an unreadable record is taken for an empty one",
        CORE + "node.py",
        "    if event.unreadable is not None:\n",
        '    if event.unreadable == "":\n',
    ),
    Mutation(
        "another instance of the same name inherits",
        SHELL + "agent.py",
        "if facts is None or facts.identity != host.identity or unreadable:",
        "if facts is None or unreadable:",
    ),
    # --- latches, epochs and drains ----------------------------------------------------------------------------------
    Mutation(
        "exit 79 does not latch",
        CORE + "hostlife.py",
        '    if not turn.host_is(f"{HOST_PREFIX}{state.value}"):\n',
        '    if turn.host_is("host.decommissioned"):\n',
    ),
    Mutation(
        "the controller's word needs no newer epoch",
        CORE + "latches.py",
        "    if epoch <= facts.epoch_seen:\n        return None\n",
        "",
    ),
    Mutation(
        "a word of the controller counts as taken before it came",
        CORE + "status.py",
        "str(node.in_force.epoch_seen)",
        "str(2**62)",
    ),
    Mutation(
        "two latches mixed",
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
        "drained is concluded while jobs run",
        CORE + "hostlife.py",
        "finished = event.status.code == 0 and event.left == 0 and not jobs_of(state)",
        "finished = event.status.code == 0",
    ),
    # --- starts, stops and restarts ----------------------------------------------------------------------------------
    Mutation(
        "generation check dropped",
        CORE + "component.py",
        "if self.state.run is not None and event.generation == self.state.generation:",
        "if self.state.run is not None:",
    ),
    Mutation(
        "an exit before the start was reported is ignored",
        CORE + "component.py",
        "case Gone() if run.phase is Phase.LIVE or run.phase is Phase.SPAWN:",
        "case Gone() if run.phase is Phase.LIVE:",
    ),
    Mutation(
        "the core draws its own jitter",
        CORE + "backoff.py",
        "    return full - full * jitter //",
        '    jitter = __import__("os").getrandom(1)[0] * 4\n    return full - full * jitter //',
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
        "backoff not reset",
        CORE + "backoff.py",
        "    return 0 if ended_ns - started_ns >= spec.reset_after_ns else failures\n",
        "    return failures\n",
    ),
    Mutation(
        "a stop does not end what starts",
        CORE + "component.py",
        (
            "        if self.state.aim is not Aim.NONE:\n"
            "            self.signal_stop(run, self.state.reason)\n"
            "            return\n"
        ),
        "",
    ),
    Mutation(
        "a stop in BACKOFF is lost",
        CORE + "component.py",
        "        elif not want.up:\n            self.idle(State.STOPPED, want.reason)\n        elif state.hold",
        (
            "        elif not want.up and state.state is not State.BACKOFF:\n"
            "            self.idle(State.STOPPED, want.reason)\n"
            "        elif state.hold"
        ),
    ),
    Mutation(
        "a spawn is not cancelled",
        CORE + "ladder.py",
        "self.actions.append(CancelSpawn(component=self.spec.name, generation=self.state.generation))",
        "pass",
    ),
    Mutation(
        "a child before exec outlives its agent",
        SHELL + "effects.py",
        "        if self.agent.dead or starting is None or starting.boot != self.host.boot:\n",
        "        if starting is None or starting.boot != self.host.boot:\n",
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
        "a process is known by its pid alone",
        SHELL + "agent.py",
        "if process is None or process.start_ticks != kept.start_ticks:",
        "if process is None:",
    ),
    Mutation(
        "the node finishes while something runs",
        CORE + "turn.py",
        (
            "            if any(member.state.run is not None for member in self.members.values()):\n"
            "                return\n"
        ),
        "",
    ),
    # --- silence, dependencies and what is said of it ----------------------------------------------------------------
    Mutation(
        "the stall is not discounted, deadlines pass",
        CORE + "component.py",
        "            case Stalled():\n                self.stalled(event)",
        "            case Stalled():\n                pass",
    ),
    Mutation(
        "deadline off by one interval",
        CORE + "run.py",
        "    return run.last_beat_ns + SILENT_AFTER_INTERVALS * run.interval_ns\n",
        "    return run.last_beat_ns + (SILENT_AFTER_INTERVALS + 1) * run.interval_ns\n",
    ),
    Mutation(
        "deadline short by one interval",
        CORE + "run.py",
        "    return run.last_beat_ns + SILENT_AFTER_INTERVALS * run.interval_ns\n",
        "    return run.last_beat_ns + (SILENT_AFTER_INTERVALS - 1) * run.interval_ns\n",
    ),
    Mutation(
        "a dependency is not waited for",
        CORE + "claims.py",
        "    return [name for name in spec.after if not _is_ready(node, name)]",
        "    return []",
    ),
    Mutation(
        "maintenance keeps nothing from starting",
        CORE + "claims.py",
        "    if maintenance is not None and not member.state.forced:\n",
        "    if maintenance is not None and member.removed:\n",
    ),
    Mutation(
        "two rules have changed places",
        CORE + "intent.py",
        '    OPERATOR_HOLD = "operator-hold"\n    EXIT_HOLD = "exit-hold"\n',
        '    EXIT_HOLD = "exit-hold"\n    OPERATOR_HOLD = "operator-hold"\n',
    ),
    # --- what is left alone, and what is not given up ----------------------------------------------------------------
    Mutation(
        "a controller is ended for its silence",
        CORE + "watch.py",
        "if probe.on_failure is OnFailure.REPORT and not self.is_hopeless(kind, watch):",
        "if self.now < 0:",
    ),
    Mutation(
        "maintenance does not spare what fails its probe",
        CORE + "claims.py",
        "patient=node.in_force.maintenance is not None,",
        "patient=False,",
    ),
    Mutation(
        "nobody asks whether it lives",
        CORE + "run.py",
        "startup=None, readiness=readiness, liveness=liveness)",
        "startup=None, readiness=readiness, liveness=None)",
    ),
    Mutation(
        "what hangs since before this agent is waited for",
        CORE + "component.py",
        "last_beat_ns=None if found.interval_ns is None else self.now + runs.RECONNECT_NS,",
        "last_beat_ns=None,",
    ),
    Mutation(
        "a controller is stopped before its scheduler",
        CORE + "claims.py",
        "        and _turn_not_come(node, spec)\n",
        "        and not claims\n",
    ),
    Mutation(
        "a final exit is not final",
        CORE + "hostlife.py",
        "elif meaning is ExitMeaning.HOLD and state.aim in {Aim.NONE, Aim.RETRY}:",
        "elif meaning is ExitMeaning.HOLD and state.aim is Aim.DOWN:",
    ),
    Mutation(
        "a start does not lift what a final exit holds",
        CORE + "component.py",
        "            forced=self.state.want.up,\n            hold=None,\n",
        "            forced=self.state.want.up,\n",
    ),
    Mutation(
        "a stop is never answered",
        CORE + "commands.py",
        "    if name is None or command.verb is Verb.STOP:\n        turn.reply",
        "    if name is None or command.verb is Verb.STOP:\n        if name is None:\n            turn.reply",
    ),
    # --- the configuration -------------------------------------------------------------------------------------------
    Mutation(
        "a changed command does not restart",
        CORE + "configuring.py",
        "    for name in plan.restarted:\n",
        "    for name in plan.restarted[:0]:\n",
    ),
    Mutation(
        "what was removed goes on",
        CORE + "configuring.py",
        "turn.members[name] = replace(turn.members[name], removed=True)",
        "turn.mark(name)",
    ),
    Mutation(
        "another instance's configuration is taken in the middle of a boot",
        CORE + "configuring.py",
        "if old is None or old.host.instance_id == spec.host.instance_id:",
        "if old is None or spec.host.instance_id:",
    ),
)
