"""Rounds of faults: break something, see that there is one scheduler again in time, mend it, and never see two."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node_manager.reference.clock import NS_PER_MS, NS_PER_S, boottime_ns
from tests.cluster.faults import Fault, Scene
from tests.cluster.hosts import MARGIN_S, STOP_BUDGET_S, Cluster, Manager
from tests.cluster.judge import Log, Sign, interleaved, longest_gap_ns
from tests.cluster.observer import Life, Observer
from tests.integration.host import wait_until

SETTLE_S = 60.0
"""A bound for a busy machine to be in order again, after what was broken is mended."""
LOOK_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What came of one fault."""

    fault: Fault
    again_ns: int
    """From the fault until a scheduler of later worked; 0: the one that was there never ceased."""
    fused: bool
    """Its fuse killed it: the agent was stopped or dead when it died."""
    fuse_error_ns: int | None
    """From the fuse's deadline to the death; None: not known."""
    past_lease_ns: int | None
    """From the end of the lease to the death; negative is in time; None: not known, or it lived on."""
    moved: bool
    """Another host took over."""


@dataclass(slots=True)
class Outcome:
    """What is found in all rounds."""

    rounds: list[Round] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    terms: int = 0
    signs: int = 0
    longest_gap_ns: int = 0
    overlaps: int = 0
    blind_ns: int = 0
    """The observer's longest time between two looks."""


class Trial:
    """One cluster, and the rounds on it; `say` gets a line about each.

    `reaction_s`: what may pass until there is a scheduler again, beyond the lease and the stop budget.
    """

    def __init__(
        self,
        base: Path,
        *,
        group: Path | None,
        lease_s: float,
        reaction_s: float,
        components: str,
        programs: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self.cluster = Cluster(base, group=group, lease_s=lease_s, components=components, programs=programs)
        self.observer = Observer(base)
        self.log = Log(self.cluster.log)
        self.outcome = Outcome()
        self.bound_ns = round((lease_s + STOP_BUDGET_S + reaction_s) * NS_PER_S)

    def run(self, faults: Sequence[Fault]) -> Outcome:
        """Play these faults one after the other."""
        self.observer.start()
        try:
            self.cluster.up()
            for number, fault in enumerate(faults, 1):
                done = self._round(fault)
                self.outcome.rounds.append(done)
                self._say(f"{number:4}/{len(faults)}  {describe(done)}")
            self._settle()
        except AssertionError as error:
            self.outcome.failures.append(str(error))
        finally:
            self.observer.stop()
            self.cluster.end()
        self._judge()
        return self.outcome

    def _round(self, fault: Fault) -> Round:
        life = self._settle()
        primary = self._host(life)
        begun_ns = boottime_ns()
        mend = fault.inject(Scene(cluster=self.cluster, primary=primary))
        fused = False
        last: Sign | None = None
        try:
            if not fault.spares:
                wait_until(lambda: life.died_ns is not None, f"{fault.target}: the old scheduler is gone", SETTLE_S)
                fused = fault.fuse and life.killed is not False
                last = self._last_of(life, begun_ns)
            self._hold(fault, life, begun_ns)
        finally:
            mend()
        if fault.spares and life.died_ns is None:
            return Round(fault=fault, again_ns=0, fused=False, fuse_error_ns=None, past_lease_ns=None, moved=False)
        again = self._again(life, begun_ns, fault)
        last = last or self._last_of(life, begun_ns)
        past_ns = None
        if last is not None and last.valid_until_ns and life.died_ns is not None:
            past_ns = life.died_ns - last.valid_until_ns
            if past_ns > 0:
                self.outcome.failures.append(f"{fault.kind}, {fault.target}: lived {past_ns} ns beyond its lease")
        return Round(
            fault=fault,
            again_ns=again.at_ns - begun_ns,
            fused=fused,
            fuse_error_ns=None if past_ns is None or not fused else past_ns + round(MARGIN_S * NS_PER_S),
            past_lease_ns=past_ns,
            moved=self._successor(life, again).host != life.host,
        )

    def _hold(self, fault: Fault, life: Life, begun_ns: int) -> None:
        """Leave it broken: until another scheduler works, where one can; else for longer than the lease."""
        if fault.stuck:
            return
        until_ns = begun_ns + (round((self.cluster.lease_s + 1) * NS_PER_S) if fault.spares else self.bound_ns)
        while boottime_ns() < until_ns and (fault.spares or self._after(life, begun_ns) is None):
            time.sleep(LOOK_S)

    def _again(self, life: Life, begun_ns: int, fault: Fault) -> Sign:
        """The first sign of another scheduler; too late is a failure, but not the end."""
        found = wait_until(lambda: self._after(life, begun_ns), f"{fault.kind}, {fault.target}: a scheduler", SETTLE_S)
        assert found is not None
        if found.at_ns - begun_ns > self.bound_ns:
            late_ms = (found.at_ns - begun_ns) // NS_PER_MS
            self.outcome.failures.append(f"{fault.kind}, {fault.target}: one again only after {late_ms} ms")
        return found

    def _successor(self, life: Life, again: Sign) -> Life:
        """Whose sign it was."""

        def look() -> list[Life]:
            later = [one for one in self.observer.lives() if one.seen_ns > life.seen_ns]
            return [one for one in later if one.died_ns is None or one.died_ns >= again.at_ns]

        found = wait_until(look, "the successor is seen", SETTLE_S)
        return found[0]

    def _after(self, life: Life, begun_ns: int) -> Sign | None:
        """The first sign after the death of the old scheduler."""
        if life.died_ns is None:
            return None
        after_ns = max(begun_ns, life.died_ns)
        first = None
        for sign in reversed(self.log.read()):
            if sign.at_ns <= after_ns:
                break
            first = sign
        return first

    def _last_of(self, life: Life, begun_ns: int) -> Sign | None:
        """What the scheduler that died wrote last."""
        assert life.died_ns is not None
        for sign in reversed(self.log.read()):
            if sign.pid == life.pid or (sign.pid == 0 and sign.at_ns <= life.died_ns):
                return sign
            if sign.at_ns < begun_ns - 60 * NS_PER_S:
                break
        return None

    def _settle(self) -> Life:
        """Wait until everything is in order and one scheduler has worked for a moment; return it."""
        wait_until(self.cluster.well, "everything is in order", SETTLE_S)
        found: list[Life] = []

        def one() -> bool:
            found[:] = self.observer.alive()
            if len(found) != 1:
                return False
            signs = self.log.read()
            fresh = bool(signs) and boottime_ns() - signs[-1].at_ns < NS_PER_S
            return fresh and signs[-1].at_ns > found[0].seen_ns + 200 * NS_PER_MS

        wait_until(one, "one scheduler works", SETTLE_S)
        return found[0]

    def _host(self, life: Life) -> Manager:
        return next(host for host in self.cluster.hosts if host.name == life.host)

    def _judge(self) -> None:
        outcome, signs = self.outcome, self.log.read()
        crossed = interleaved(signs)
        outcome.overlaps = len(self.observer.overlaps) + len(crossed)
        outcome.failures += self.observer.overlaps + crossed
        outcome.terms = len({sign.term for sign in signs})
        outcome.signs = len(signs)
        outcome.longest_gap_ns = longest_gap_ns(signs)
        outcome.blind_ns = self.observer.late_ns


def describe(done: Round) -> str:
    """One line about a round."""
    what = f"{done.fault.kind}, {done.fault.target}"
    if not done.again_ns:
        return f"{what:<42} the scheduler lived on"
    words = [f"one again after {done.again_ns / NS_PER_S:5.2f} s", "elsewhere" if done.moved else "on the same host"]
    if done.fused:
        error = "" if done.fuse_error_ns is None else f" {done.fuse_error_ns / NS_PER_MS:+.1f} ms from its deadline"
        words.append(f"ended by its fuse{error}")
    return f"{what:<42} {', '.join(words)}"
