"""What can only be judged once all components of the host are known: names, order, facts and their authorities, leases.

Runs in the validator alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from node_manager.config.document import Located, Path_
from node_manager.config.errors import suggestion
from node_manager.config.fields import NAME_PATTERN
from node_manager.config.problems import Problem
from node_manager.core.budget import rejoin_budget_ns
from node_manager.core.events import HostState
from node_manager.core.facts import HOST_PREFIX, LEASE_PREFIX, PRIMARY, is_leased
from node_manager.core.spec import NS_PER_S, ComponentSpec, ProbeSpec, stop_budget_ns

HOST_FACTS = tuple(f"{HOST_PREFIX}{state.value}" for state in HostState if state is not HostState.ACTIVE)
TERM_SUFFIX = ".term"
FACT_FORMS = (PRIMARY, *HOST_FACTS, f"{LEASE_PREFIX}NAME", "component.NAME.ready")
"""Every fact that a condition may name."""

_LEASE = re.compile(rf"lease\.{NAME_PATTERN}")
_READY = re.compile(rf"component\.({NAME_PATTERN})\.ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One component on its way to a spec. `spec` is None where the component alone is already wrong."""

    name: str
    role: str
    tree: Located
    spec: ComponentSpec | None

    @property
    def base(self) -> Path_:
        """Its path in the role file, and in the boot configuration."""
        return ("components", self.name)

    def names(self, field: str) -> list[tuple[str, Located, Path_]]:
        """The texts of a list field, each with where it stands; also where the component as a whole is wrong."""
        listed = self.tree.child(field)
        items = listed.value if listed is not None and isinstance(listed.value, list) else []
        return [
            (item.value, item, (*self.base, field, index))
            for index, item in enumerate(items)
            if isinstance(item.value, str)
        ]

    def problem(self, path: Path_, what: str, remedy: str) -> Problem:
        """A problem of a field, at the nearest line that exists."""
        found = self.tree
        for step in path:
            found = found.child(step) or found
        return found.problem((*self.base, *path), what, remedy)


@dataclass(frozen=True, slots=True)
class _Host:
    """All components of the host, and who states which fact.

    Where `complete` is false, a role could not be read: nothing is said of what may stand in it.
    """

    components: dict[str, Candidate]
    authorities: dict[str, list[str]]
    complete: bool

    def lacks(self, component: str) -> bool:
        """No component of this host has this name."""
        return self.complete and component not in self.components

    def unstated(self, fact: str) -> bool:
        """No component of this host states this fact."""
        return self.complete and fact not in self.authorities

    def suggest(self, component: str, asking: str) -> str:
        """The remedy where `asking` names a component that does not exist."""
        return suggestion(component, self.components.keys() - {asking}, what="components of this host")


def cross_check(candidates: list[Candidate], grace: Located | None, *, complete: bool) -> list[Problem]:
    """Every problem between components. `grace` is `controller.host_loss_grace_s`, where it is given.

    `complete` is false where a role could not be read: then nothing is said of names that may stand in it.
    """
    authorities: dict[str, list[str]] = {}
    for candidate in candidates:
        for fact, _, _ in candidate.names("states"):
            authorities.setdefault(fact, []).append(candidate.name)
    host = _Host({candidate.name: candidate for candidate in candidates}, authorities, complete)
    problems = list(_cycles(host))
    for candidate in candidates:
        problems += [*_order(candidate, host), *_statements(candidate, host), *_conditions(candidate, host)]
        problems += _terms(candidate)
        if candidate.spec is not None:
            problems += [*_thresholds(candidate, candidate.spec), *_lease_budget(candidate, candidate.spec, host)]
            problems += _grace(candidate.spec, grace)
    return problems


def _order(candidate: Candidate, host: _Host) -> Iterator[Problem]:
    for name, where, path in candidate.names("after"):
        if host.lacks(name):
            yield where.problem(path, f"{name} is no component of this host", host.suggest(name, candidate.name))


def _statements(candidate: Candidate, host: _Host) -> Iterator[Problem]:
    """A fact has one authority on a host: two would overrule each other with every beat."""
    for fact, where, path in candidate.names("states"):
        if not _valid(fact) or _READY.fullmatch(fact):
            remedy = suggestion(fact, FACT_FORMS[:-1], what="facts")
            yield where.problem(path, f"{fact} is no fact that a component can state", remedy)
        elif host.authorities[fact][0] != candidate.name:
            remedy = "let one component of the host state it"
            yield where.problem(path, f"{host.authorities[fact][0]} states {fact} too", remedy)


def _conditions(candidate: Candidate, host: _Host) -> Iterator[Problem]:
    for field in ("run_while", "stop_when"):
        for fact, where, path in candidate.names(field):
            refused = _condition_refused(fact, candidate.name, host)
            if refused is not None:
                yield where.problem(path, *refused)


def _terms(candidate: Candidate) -> Iterator[Problem]:
    held = {fact for fact, _, _ in candidate.names("run_while")}
    for name, where, path in candidate.names("restart_on_change"):
        fact = name.removesuffix(TERM_SUFFIX)
        if fact == name or not (is_leased(fact) and _valid(fact)):
            remedy = f"write {PRIMARY}{TERM_SUFFIX} or {LEASE_PREFIX}NAME{TERM_SUFFIX}"
            yield where.problem(path, f"{name} is no term of a leased fact", remedy)
        elif fact not in held:
            yield where.problem(path, f"{fact} is not in run_while", f"add {fact} to run_while")


def _valid(fact: str) -> bool:
    return fact in {PRIMARY, *HOST_FACTS} or bool(_LEASE.fullmatch(fact) or _READY.fullmatch(fact))


def _condition_refused(fact: str, name: str, host: _Host) -> tuple[str, str] | None:
    """Why there cannot be a condition on this fact, and what to do; None where there can."""
    if not _valid(fact):
        return f"{fact} is no fact", suggestion(fact, FACT_FORMS, what="facts")
    if ready := _READY.fullmatch(fact):
        if ready[1] == name:
            return f"{name} cannot depend on its own readiness", "name another component"
        if host.lacks(ready[1]):
            return f"{ready[1]} is no component of this host", host.suggest(ready[1], name)
    # Two authorities are refused where they state the fact. For host.* facts an operator is an authority too.
    if is_leased(fact) and host.unstated(fact):
        remedy = f"add `states: [{fact}]` to the component that knows it, or the role of that component to `roles`"
        return f"no component of this host states {fact}", remedy
    return None


def _waits_for(candidate: Candidate, host: _Host) -> dict[str, Path_]:
    """The other components that must be up first, each with the field that says so."""
    edges = {name: path for name, _, path in candidate.names("after")}
    for fact, _, path in candidate.names("run_while"):
        if ready := _READY.fullmatch(fact):
            if ready[1] != candidate.name:  # refused already
                edges.setdefault(ready[1], path)
        elif is_leased(fact) and fact in host.authorities:
            edges.setdefault(host.authorities[fact][0], path)
    return {name: path for name, path in edges.items() if name in host.components}


def _cycles(host: _Host) -> Iterator[Problem]:
    """Each circle of components of which every one waits for the next."""
    edges = {name: _waits_for(candidate, host) for name, candidate in host.components.items()}
    waiting = dict(edges)
    while waiting:
        free = [name for name, before in waiting.items() if not any(other in waiting for other in before)]
        if free:
            for name in free:
                del waiting[name]
            continue
        circle = _circle(waiting)
        first = circle[0]
        _, _, *path = edges[first][circle[1 % len(circle)]]
        chain = " waits for ".join([*circle, first])
        what = f"it can never start: {chain}"
        yield host.components[first].problem(tuple(path), what, "remove one of these dependencies or conditions")
        for name in circle:
            del waiting[name]


def _circle(waiting: dict[str, dict[str, Path_]]) -> list[str]:
    """One circle among components that all wait for another one of them."""
    walked = [next(iter(waiting))]
    while True:
        following = next(other for other in waiting[walked[-1]] if other in waiting)
        if following in walked:
            return walked[walked.index(following) :]
        walked.append(following)


def _thresholds(candidate: Candidate, spec: ComponentSpec) -> Iterator[Problem]:
    """The kubelet takes one success for startup and liveness (kubernetes.io, Probe v1 core)."""
    probes: dict[str, ProbeSpec | None] = {"startup": spec.startup, "liveness": spec.liveness}
    for kind, probe in probes.items():
        if probe is not None and probe.success_threshold != 1:
            path = ("probes", kind, "success_threshold")
            yield candidate.problem(path, f"it must be 1 for a {kind} probe", "remove it; it counts for readiness")


def _lease_budget(candidate: Candidate, spec: ComponentSpec, host: _Host) -> Iterator[Problem]:
    """A dependant that takes longer to stop than a lease can last would never be started."""
    for fact in spec.run_while:
        if not is_leased(fact) or fact not in host.authorities:
            continue
        authority = host.components[host.authorities[fact][0]].spec
        if authority is not None and stop_budget_ns(spec) >= authority.max_lease_ns:
            budget, lease = stop_budget_ns(spec) / NS_PER_S, authority.max_lease_ns / NS_PER_S
            what = f"its stop takes up to {budget:g} s, but {fact} is leased for at most {lease:g} s"
            remedy = f"lower stop.timeout_s or stop.kill_timeout_s, or raise max_lease_s of {authority.name}"
            yield candidate.problem(("stop", "timeout_s"), what, remedy)


def _grace(spec: ComponentSpec, grace: Located | None) -> Iterator[Problem]:
    """A controller must not take the restart of what speaks for this host for the loss of the host."""
    if grace is None or type(grace.value) not in {int, float} or not any(fact in HOST_FACTS for fact in spec.states):
        return
    given, needed = float(grace.text), rejoin_budget_ns(spec) / NS_PER_S
    if given <= needed:
        what = f"a restart of {spec.name} and its rejoin take up to {needed:g} s, the grace is {given:g} s"
        remedy = (
            f"make it more than {needed:g}, or lower stop.timeout_s, restart.cap_s or the bound of the startup probe "
            f"of {spec.name}"
        )
        yield grace.problem(("controller", "host_loss_grace_s"), what, remedy)
