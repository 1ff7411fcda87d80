"""What a component is doing that does not give a sign of life: a verdict over two looks at its process.

A look (`Sample`) is what the kernel tells of a process at one instant; nobody looks at a component that is in time.
The rules, the first that holds decides:

| verdict    | what was seen                                                                                       |
|------------|-----------------------------------------------------------------------------------------------------|
| dead       | no such process, or a zombie without a living thread                                                |
| frozen     | its cgroup is frozen, or a signal or a debugger has stopped it                                      |
| (nothing)  | the only look so far, two that are too near to each other, or at the first it was frozen            |
| deadlocked | it was heard of meanwhile, but its PROGRESS stands still and it uses no CPU time to speak of        |
| slow       | it was heard of meanwhile                                                                           |
| starved    | it got next to no CPU time and wanted it: runnable at both looks, or waiting for its turn half the  |
|            | time; or memory was short half the time; or it was in uninterruptible sleep at both looks           |
| deadlocked | nothing of it ran between the looks, nor is about to                                                |
| slow       | anything else: it runs and does not answer                                                          |

What is frozen or starved is no better after a restart: the one goes on when it is thawed, the other needs what the
host does not have. So they are reported (`SPARED`) and looked at again.
"""

from node_manager.core.spec import NS_PER_MS, NS_PER_S
from node_manager.core.symbols import Symbol
from node_manager.core.values import dataclass

MIN_SPAN_NS = 100 * NS_PER_MS
"""Two looks nearer than this say nothing: it is the shortest interval that a component can promise, and ten ticks of
the coarsest clock that CPU time is counted by."""
STARVED_PARTS = 10
"""Starved gets less than one part in so many of one CPU: with more it could have given a sign of life in time."""
PRESSED_PARTS = 2
"""Time waited for the CPU or for memory counts from one part in so many of the time between the looks."""
IDLE_PARTS = 100
"""Beats cost a thread less than one part in so many of one CPU: what uses more works on something."""


class Verdict(Symbol):
    """What is said of a component's process. Values are what status and API print."""

    OK = "ok"
    SLOW = "slow"
    """Late or silent, but something of it runs; or it cannot be told what it does."""
    STARVED = "starved"
    FROZEN = "frozen"
    DEADLOCKED = "deadlocked"
    DEAD = "dead"


SPARED = frozenset({Verdict.STARVED, Verdict.FROZEN})
"""Not killed for silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a process. What a kernel does not tell is None."""

    at_ns: int
    """CLOCK_BOOTTIME when it was taken."""
    state: str
    """Of its main thread, as in proc_pid_stat(5); empty: there is no such process."""
    threads: int = 1
    runnable: bool = False
    """A thread of it is in state R: runs, or waits for a CPU."""
    uninterruptible: bool = False
    """A thread of it is in state D."""
    frozen: bool = False
    """Its cgroup is frozen, by itself or by an ancestor."""
    ran_ns: int = 0
    """CPU time of its threads."""
    tree_ran_ns: int | None = None
    """CPU time of what it started; None where that is no part of it (kill scope `process`)."""
    waited_ns: int | None = None
    """Time that its threads spent waiting for a CPU, as far as the waits are over (/proc/PID/schedstat)."""
    memory_stall_ns: int | None = None
    """Time in which something of its cgroup, or of the host, waited for memory (PSI, `some`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A verdict, and the sentence that says what it rests on."""

    verdict: Verdict
    detail: str


def judge(
    before: Sample | None, after: Sample, *, heard: bool = False, progressed: bool | None = None
) -> Finding | None:
    """Return the verdict on a late component, or None while it takes another look.

    `heard`: a beat or a WATCHDOG=1 came since `before`; `progressed`: its PROGRESS moved since (None: it reports none).
    No time in which the agent itself stood still may lie between the looks.
    """
    still = _ended(after) or _stopped(after)
    if still is not None:
        return still
    if before is None or _stopped(before) is not None or after.at_ns - before.at_ns < MIN_SPAN_NS:
        return None
    span_ns = after.at_ns - before.at_ns
    if heard:
        if progressed is False and _ran_ns(before, after) * IDLE_PARTS < span_ns:
            return Finding(
                verdict=Verdict.DEADLOCKED, detail=f"it speaks, but its work has not moved for {_time(span_ns)}"
            )
        return Finding(verdict=Verdict.SLOW, detail="it still speaks")
    return _starved(before, after, span_ns) or _asleep_or_slow(before, after, span_ns)


def _ended(after: Sample) -> Finding | None:
    if after.state == "":
        return Finding(verdict=Verdict.DEAD, detail="its process is gone")
    if after.state in "Xx" or (after.state == "Z" and after.threads <= 1):
        return Finding(verdict=Verdict.DEAD, detail="its process has ended and is a zombie")
    return None


def _stopped(after: Sample) -> Finding | None:
    if after.frozen:
        return Finding(verdict=Verdict.FROZEN, detail="its cgroup is frozen; it goes on when that is thawed")
    if after.state == "T":
        return Finding(verdict=Verdict.FROZEN, detail="stopped by a signal; SIGCONT lets it go on")
    if after.state == "t":
        return Finding(verdict=Verdict.FROZEN, detail="stopped by a debugger")
    return None


def _starved(before: Sample, after: Sample, span_ns: int) -> Finding | None:
    """Tell whether it was kept from running."""
    ran_ns = _ran_ns(before, after)
    if ran_ns * STARVED_PARTS >= span_ns:
        return None
    if (before.runnable and after.runnable) or _long(before.waited_ns, after.waited_ns, span_ns):
        return Finding(
            verdict=Verdict.STARVED, detail=f"it waits for a CPU: it ran {_time(ran_ns)} of {_time(span_ns)}"
        )
    if _long(before.memory_stall_ns, after.memory_stall_ns, span_ns):
        return Finding(verdict=Verdict.STARVED, detail=f"memory is short: it ran {_time(ran_ns)} of {_time(span_ns)}")
    if before.uninterruptible and after.uninterruptible:
        return Finding(
            verdict=Verdict.STARVED, detail="in uninterruptible sleep: it waits for a device or a file system"
        )
    return None


def _asleep_or_slow(before: Sample, after: Sample, span_ns: int) -> Finding:
    ran_ns, tree_ns = _ran_ns(before, after), _tree_ran_ns(before, after)
    ended = "; its main thread has ended" if after.state == "Z" else ""
    if ran_ns == 0 and tree_ns == 0 and not after.runnable:
        count = "its one thread sleeps" if after.threads == 1 else f"its {after.threads} threads sleep"
        return Finding(verdict=Verdict.DEADLOCKED, detail=f"nothing of it ran for {_time(span_ns)}: {count}{ended}")
    whose = f"what it started ran {_time(tree_ns)}" if ran_ns == 0 and tree_ns else f"it ran {_time(ran_ns)}"
    return Finding(verdict=Verdict.SLOW, detail=f"{whose} of {_time(span_ns)} and does not answer{ended}")


def _ran_ns(before: Sample, after: Sample) -> int:
    """Return the CPU time between the looks. A sum that shrank is of other threads: something ran, too."""
    return abs(after.ran_ns - before.ran_ns)


def _tree_ran_ns(before: Sample, after: Sample) -> int:
    if before.tree_ran_ns is None or after.tree_ran_ns is None:
        return 0
    return abs(after.tree_ran_ns - before.tree_ran_ns)


def _long(before_ns: int | None, after_ns: int | None, span_ns: int) -> bool:
    return before_ns is not None and after_ns is not None and (after_ns - before_ns) * PRESSED_PARTS >= span_ns


def _time(duration_ns: int) -> str:
    """Return a time as people read it: `0.25 s`, `12 ms`, or `less than 1 ms`."""
    if duration_ns >= NS_PER_S // 10:
        return f"{duration_ns / NS_PER_S:.3g} s"
    return f"{duration_ns // NS_PER_MS} ms" if duration_ns >= NS_PER_MS else "less than 1 ms"


LOOK_WAIT_NS = 5 * NS_PER_S
"""How long a look may take: a starved host is slow to look, and it matters to know that it is starved."""
LATE = Finding(verdict=Verdict.SLOW, detail="it is late")
"""What is said before it was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """An episode in which a component is late. It ends with its next sign of life, or with its run."""

    since_ns: int
    finding: Finding = LATE
    before: Sample | None = None
    """The look that the next one is compared with."""
    progress: int | None = None
    """PROGRESS at that look."""
    look_ns: int | None = None
    """When it is looked at next."""
    asked_ns: int | None = None
    """A look is under way, since when."""
    hangs: bool = False
    """That look has not come back in time."""
    failed_ns: int | None = None
    """Its probe has failed: a look from this instant on decides."""
    decided: bool = False
    deadlocked_ns: int | None = None
    """Since when the verdict has been `deadlocked`."""
    evidence_by_ns: int | None = None
    """Evidence is being taken; a kill waits for it until this instant."""
    evidence_done: bool = False

    @property
    def wake_ns(self) -> int | None:
        """When time alone will next change something about it, or None."""
        times = []
        if self.asked_ns is not None and not self.hangs:
            times.append(self.asked_ns + LOOK_WAIT_NS)
        if self.asked_ns is None and self.look_ns is not None:
            times.append(self.look_ns)
        if self.evidence_by_ns is not None and not self.evidence_done:
            times.append(self.evidence_by_ns)
        return min(times, default=None)
