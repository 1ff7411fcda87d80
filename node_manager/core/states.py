"""The states of a component, the changes between them that exist, and what is remembered of one component."""

from dataclasses import field

from node_manager.core.events import ExitStatus, Past
from node_manager.core.intent import PRECEDENCE, Rule, Want
from node_manager.core.run import Phase, Run
from node_manager.core.run import wake_ns as run_wake_ns
from node_manager.core.symbols import Symbol
from node_manager.core.values import dataclass
from node_manager.core.wedge import Verdict


class State(Symbol):
    """Where a component is. Values are what status and API print."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    BACKOFF = "backoff"
    EXITED = "exited"
    FAILED = "failed"


IDLE = frozenset({State.STOPPED, State.BACKOFF, State.EXITED, State.FAILED})
"""States without a run."""

WATCHED = frozenset({State.STARTING, State.RUNNING})
"""States in which probes count."""

TRANSITIONS: dict[tuple[State, State], str] = {
    (State.STOPPED, State.STARTING): "wanted",
    (State.STOPPED, State.RUNNING): "adopted",
    (State.STOPPED, State.BACKOFF): "wanted, delay not over",
    (State.STOPPED, State.EXITED): "wanted, exit-hold",
    (State.STOPPED, State.FAILED): "wanted, start limit",
    (State.STOPPED, State.KILLING): "an earlier run left something",
    (State.STARTING, State.RUNNING): "startup passed",
    (State.STARTING, State.STOPPING): "unwanted, or startup failed",
    (State.STARTING, State.KILLING): "main process ended, tree left",
    (State.STARTING, State.STOPPED): "ended, unwanted",
    (State.STARTING, State.BACKOFF): "ended, or could not start",
    (State.STARTING, State.STARTING): "ended, delay over",
    (State.STARTING, State.EXITED): "exit status is final",
    (State.STARTING, State.FAILED): "ended, start limit",
    (State.RUNNING, State.STOPPING): "unwanted, restart, or liveness failed",
    (State.RUNNING, State.KILLING): "main process ended, tree left",
    (State.RUNNING, State.STOPPED): "ended, unwanted",
    (State.RUNNING, State.STARTING): "ended, delay over",
    (State.RUNNING, State.BACKOFF): "ended",
    (State.RUNNING, State.EXITED): "exit status is final",
    (State.RUNNING, State.FAILED): "ended, start limit",
    (State.STOPPING, State.KILLING): "time is over, or tree left",
    (State.STOPPING, State.STOPPED): "gone",
    (State.STOPPING, State.STARTING): "gone, wanted",
    (State.STOPPING, State.BACKOFF): "gone, wanted, delay not over",
    (State.STOPPING, State.EXITED): "gone, exit status is final",
    (State.STOPPING, State.FAILED): "gone, start limit",
    (State.KILLING, State.STOPPED): "gone",
    (State.KILLING, State.STARTING): "gone, wanted",
    (State.KILLING, State.BACKOFF): "gone, wanted, delay not over",
    (State.KILLING, State.EXITED): "gone, exit status is final",
    (State.KILLING, State.FAILED): "gone, start limit",
    (State.BACKOFF, State.STARTING): "delay over, or manual start",
    (State.BACKOFF, State.STOPPED): "unwanted, or may not start",
    (State.BACKOFF, State.FAILED): "delay over, start limit",
    (State.BACKOFF, State.KILLING): "unwanted with all it left",
    (State.EXITED, State.STARTING): "manual start",
    (State.EXITED, State.STOPPED): "unwanted",
    (State.EXITED, State.KILLING): "unwanted with all it left",
    (State.FAILED, State.STARTING): "manual start, or configuration changed",
    (State.FAILED, State.STOPPED): "unwanted",
    (State.FAILED, State.BACKOFF): "start limit changed",
    (State.FAILED, State.KILLING): "unwanted with all it left",
}
"""Every change of state that exists, and its cause. The diagram in `docs/` is drawn from this table."""


class Aim(Symbol):
    """What a stop under way is for."""

    NONE = "none"
    DOWN = "down"
    RESTART = "restart"
    """Start again at once."""
    RETRY = "retry"
    """Start again as after a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentState:
    """All that is remembered of one component."""

    state: State = State.STOPPED
    since_ns: int = 0
    reason: str = "not started yet"
    generation: int = 0
    run: Run | None = None
    aim: Aim = Aim.NONE
    deadline_ns: int | None = None
    """When this state does something by itself: ends its delay, kills, kills again."""
    stop_by_ns: int | None = None
    """The last instant to which a stop may be extended."""
    want: Want = field(default=Want(up=False, rule=Rule.CONFIGURED, reason="not decided yet", held=True))
    """At first nothing is decided: what is adopted is left alone until it is."""
    want_since_ns: int = 0
    forced: bool = False
    """A start that was asked for is to be carried out: delay, limit and maintenance do not count."""
    failures: int = 0
    not_before_ns: int = 0
    starts: tuple[int, ...] = ()
    gave_up: str | None = None
    hold: str | None = None
    hold_since_ns: int = 0
    restarts: int = 0
    """Starts after the first one, whatever they were for."""
    crashes: int = 0
    """Runs that failed by themselves or by a probe, since this agent began."""
    ending: str = ""
    """Why the run under way is being ended."""
    last_exit: str | None = None
    """Why and how the last run ended."""
    last_jobs: int | None = None
    """Jobs that were last reported, kept until a later run reports its own."""
    litter: bool = False
    """Something that it started may live on without its main process (kill scope `process`, or an earlier agent's)."""
    ready: bool | None = False
    verdict: Verdict | None = None
    """What is said of its process; None: nothing judges it."""


SIGNAL_NAMES = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip


def wake_ns(state: ComponentState) -> int | None:
    """Return when time alone will next change this component, or None."""
    at = state.deadline_ns
    if state.run is not None and state.run.phase is Phase.LIVE and state.state in WATCHED:
        probe_ns = run_wake_ns(state.run)
        if probe_ns is not None and (at is None or probe_ns < at):
            return probe_ns
    return at


def jobs_of(state: ComponentState) -> int | None:
    """Return the jobs that the component has, as last reported, or None where it never reported any."""
    return state.last_jobs if state.run is None or state.run.jobs is None else state.run.jobs


def jobs_are_old(state: ComponentState) -> bool:
    """Tell whether that number is of an earlier run: what has become of the jobs since is not known."""
    return state.last_jobs is not None and (state.run is None or state.run.jobs is None)


def rule_of(state: ComponentState) -> Rule:
    """Return the rule that decides about this component now, its own machine's rules included."""
    want = state.want
    if state.run is not None:
        return want.rule
    if state.hold is not None and PRECEDENCE[want.rule] > PRECEDENCE[Rule.EXIT_HOLD]:
        return Rule.EXIT_HOLD
    if not want.up:
        return want.rule
    if want.waits is not None:
        return want.waits.rule
    if state.gave_up is not None:
        return Rule.START_LIMIT
    return Rule.BACKOFF if state.state is State.BACKOFF else want.rule


def past_of(name: str, state: ComponentState) -> Past:
    """Return what is to be known of a component that has left, or by the next agent."""
    return Past(
        component=name,
        generation=state.generation,
        restarts=state.restarts,
        left=state.litter,
        crashes=state.crashes,
        last_exit=state.last_exit,
        last_jobs=jobs_of(state),
    )


def describe_exit(status: ExitStatus, *, oom: bool = False) -> str:
    """Return how a process ended, as operators read it. `oom`: the kernel has killed for want of memory in its run."""
    if status.code is not None:
        return f"exited with status {status.code}"
    if status.signal is None:
        return f"ended, exit status unknown{', but the kernel had killed for want of memory' if oom else ''}"
    text = f"killed by signal {status.signal} ({SIGNAL_NAMES.get(status.signal, 'unknown')})"
    if oom:
        return f"{text}, out of memory"
    return f"{text}, core dumped" if status.core_dumped else text
