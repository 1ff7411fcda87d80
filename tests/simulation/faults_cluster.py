"""Faults of what a host stands on: the lease store, the network, the disk, the configuration, the wall clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from node_manager.core.events import ConfigLoaded, Verb, WallClock
from node_manager.core.spec import NodeSpec
from node_manager.runtime import record
from tests.simulation.world import NS_PER_S

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host

STORE = "store"

# --- the lease store and the network ----------------------------------------------------------------------------


def _stepped_down(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster, lasts_ns
    for process in host.mains("controller"):
        program = process.program
        if program is not None:
            process.run(program.step_down)


def _partition(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    cluster.cut.add(host.name)
    cluster.world.later(lasts_ns, partial(cluster.cut.discard, host.name))


def _one_way(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Requests arrive and answers do not, or the other way round."""
    way = cluster.world.rng("cut").choice(((host.name, STORE), (STORE, host.name)))
    cluster.cut_ways.add(way)
    cluster.world.later(lasts_ns, partial(cluster.cut_ways.discard, way))


def _store_paused(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del host
    cluster.store.pause(True)
    cluster.world.later(lasts_ns, lambda: cluster.store.pause(False))


def _store_down(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del host
    cluster.store.down = True
    cluster.world.later(lasts_ns, lambda: setattr(cluster.store, "down", False))


def _store_restored(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """It restarts without forgetting, under a higher revision: the holder finds a new term while it leads."""
    _store_down(cluster, host, min(lasts_ns, 5 * NS_PER_S))
    cluster.store.restore()


# --- the disk ---------------------------------------------------------------------------------------------------


def _disk_full(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    host.disk.full = True
    component = host.whole_spec.components[0].name
    for delay_ns, verb in ((1, Verb.STOP), (NS_PER_S // 50, Verb.START), (NS_PER_S // 20, Verb.STOP)):
        cluster.world.later(delay_ns, partial(cluster.operator, host, verb, component))
    cluster.world.later(lasts_ns, partial(setattr, host.disk, "full", False))
    cluster.world.later(lasts_ns + 20 * NS_PER_S, partial(cluster.operator, host, Verb.START, component))


def _disk_slow(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    host.disk.slow_ns = min(lasts_ns, 20 * NS_PER_S)
    cluster.world.later(lasts_ns, partial(setattr, host.disk, "slow_ns", 0))


def _facts_damaged(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Something destroys the latch file; some time later an operator says what is true."""
    host.disk.unreadable = True
    cluster.invariants.words.forget(host.identity)
    host.reboot()
    cluster.world.later(lasts_ns + 60 * NS_PER_S, lambda: cluster.operator(host, Verb.RECOMMISSION, None))


def _record_lost(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster
    from tests.simulation.host import EMPTY

    host.kill_agent(min(lasts_ns, 2 * NS_PER_S))
    host.record = EMPTY
    _forget_removed(host)


def _record_torn(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The runtime record ends somewhere in the middle: it is read as the agent reads it."""
    from tests.simulation.host import EMPTY

    host.kill_agent(min(lasts_ns, 2 * NS_PER_S))
    data = record.Encoder().encode(host.record)
    try:
        host.record = record.decode(data[: cluster.world.rng("torn").randrange(len(data))])
    except ValueError:
        host.record = EMPTY
        _forget_removed(host)


def _forget_removed(host: Host) -> None:
    """Note that nobody knows any more of jobs which something had that was not in the configuration: a known limit."""
    removed = len(host.wanted_spec.components) < len(host.whole_spec.components)
    host.forgot_removed = host.forgot_removed or removed


# --- the configuration and the wall clock -----------------------------------------------------------------------


def _reload(host: Host) -> None:
    if host.agent is not None:
        host.agent.reload()


def _config_wrong(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    if host.agent is not None and host.agent.state.spec is not None and cluster.world.rng("wrong").random() < 0.5:
        # It is another host's: a file that was copied, or a boot script that ran for another instance.
        spec = host.agent.state.spec
        alien = replace(spec, host=replace(spec.host, instance_id="i-another"))
        host.agent.post(ConfigLoaded(spec=alien))
        return
    host.config_broken = True
    _reload(host)

    def mend() -> None:
        host.config_broken = False
        _reload(host)

    cluster.world.later(lasts_ns, mend)


def _config_changed(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del lasts_ns
    host.wanted_spec = _changed(cluster, host.wanted_spec)
    _reload(host)


def _changed(cluster: Cluster, spec: NodeSpec) -> NodeSpec:
    """Return another configuration: another command, another delay, another time to stop."""
    rng = cluster.world.rng("config")
    components = []
    for old in spec.components:
        kind = rng.randrange(4)
        if kind == 0:
            components.append(replace(old, environment=(("N", str(rng.randrange(3))),)))
        elif kind == 1:
            components.append(replace(old, restart=replace(old.restart, cap_ns=rng.choice((10, 30)) * NS_PER_S)))
        elif kind == 2:
            components.append(replace(old, stop=replace(old.stop, timeout_ns=rng.choice((3, 5, 8)) * NS_PER_S)))
        else:
            components.append(old)
    return replace(spec, components=tuple(components))


def _component_removed(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The last component leaves the configuration, and comes back."""
    gone = host.whole_spec.components[-1]
    rest = tuple(spec for spec in host.wanted_spec.components if spec.name != gone.name)
    host.wanted_spec = replace(host.wanted_spec, components=rest)
    _reload(host)

    def add() -> None:
        if all(spec.name != gone.name for spec in host.wanted_spec.components):
            host.wanted_spec = replace(host.wanted_spec, components=(*host.wanted_spec.components, gone))
            _reload(host)

    cluster.world.later(lasts_ns, add)


def _wall_clock(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del lasts_ns
    host.wall_offset_ns += cluster.world.rng("wall").choice((-3600, 3600)) * NS_PER_S
    if host.agent is not None:
        host.agent.post(WallClock(offset_ns=host.wall_offset_ns))


KINDS: dict[str, Callable[[Cluster, Host, int], None]] = {
    "controller steps down": _stepped_down,
    "partition": _partition,
    "one-way partition": _one_way,
    "store paused": _store_paused,
    "store down": _store_down,
    "store restored": _store_restored,
    "disk full": _disk_full,
    "disk slow": _disk_slow,
    "facts damaged": _facts_damaged,
    "record lost": _record_lost,
    "record torn": _record_torn,
    "config wrong": _config_wrong,
    "config changed": _config_changed,
    "component removed": _component_removed,
    "wall clock jumps": _wall_clock,
}
