"""The order of starts and stops, and what a new configuration changes."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import field

from node_manager.core.spec import ComponentSpec, NodeSpec
from node_manager.core.values import dataclass

DIGEST_VERSION = "1"
"""Digests of different versions are not compared: a new agent must not restart what it only describes anew."""
PROCESS_FIELDS = (
    "command",
    "user",
    "environment",
    "environment_file",
    "working_directory",
    "limits",
    "oom_score_adj",
    "log",
)
"""The fields of a spec that a process has from its birth: a change of one of them needs a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Look-ups made once for a configuration, so that no event looks at every component."""

    order: tuple[str, ...] = ()
    """Start order; stops go the other way."""
    dependants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Component -> those that are started after it."""
    followers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fact -> components with a condition on it."""
    authorities: Mapping[str, str] = field(default_factory=dict)
    """Fact -> the component that states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a new configuration means for the components, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    restarted: tuple[str, ...]
    updated: tuple[str, ...]
    """Changed without a restart: probes, conditions, delays."""


def index(components: Iterable[ComponentSpec]) -> Index:
    """Return the look-ups for a set of components whose `after` relation has no cycle (`config` refuses one)."""
    specs = {spec.name: spec for spec in components}
    dependants: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    authorities: dict[str, str] = {}
    for spec in specs.values():
        for name in spec.after:
            dependants.setdefault(name, []).append(spec.name)
        for fact in dict.fromkeys((*spec.run_while, *spec.stop_when)):
            followers.setdefault(fact, []).append(spec.name)
        for fact in spec.states:
            authorities[fact] = spec.name
    return Index(
        order=start_order(specs),
        dependants={name: tuple(found) for name, found in dependants.items()},
        followers={name: tuple(found) for name, found in followers.items()},
        authorities=authorities,
    )


def start_order(specs: Mapping[str, ComponentSpec]) -> tuple[str, ...]:
    """Return the names so that each comes after all that it is `after`; else in the order given."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in order:
            return
        for before in specs[name].after:
            if before in specs:
                visit(before)
        order[name] = None

    for name in specs:
        visit(name)
    return tuple(order)


def plan_change(old: Mapping[str, ComponentSpec], new: NodeSpec) -> Plan:
    """Return what has to happen to get from the running components to the new configuration."""
    wanted = {spec.name: spec for spec in new.components}
    both = [name for name in wanted if name in old]
    changed = [name for name in both if wanted[name] != old[name]]
    restarted = tuple(name for name in changed if process_digest(wanted[name]) != process_digest(old[name]))
    return Plan(
        added=tuple(name for name in wanted if name not in old),
        removed=tuple(name for name in old if name not in wanted),
        restarted=restarted,
        updated=tuple(name for name in changed if name not in restarted),
    )


def process_digest(spec: ComponentSpec) -> str:
    """Return a digest of everything that a process of `spec` has from its birth."""
    text = repr([(name, getattr(spec, name)) for name in PROCESS_FIELDS])
    return f"{DIGEST_VERSION}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def digest_differs(old: str, new: str) -> bool:
    """Tell whether two digests are comparable and differ."""
    return old.partition(":")[0] == new.partition(":")[0] and old != new
