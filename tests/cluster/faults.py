"""What is done to a cluster of three hosts, and how it is taken back."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.etcd import Member, leader
from tests.cluster.hosts import Cluster, Manager

KILL, STOP, SIGSTOP, PARTITION = KINDS = ("kill", "graceful stop", "SIGSTOP", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster, and the host whose scheduler lives when the fault begins."""

    cluster: Cluster
    primary: Manager

    @property
    def local(self) -> Member:
        """The member of etcd on the primary's host."""
        return self.cluster.members[self.cluster.hosts.index(self.primary)]

    def leading(self) -> int:
        """Which host has the leading member of etcd."""
        address = leader([member.client for member in self.cluster.members])
        found = (number for number, member in enumerate(self.cluster.members) if member.client == address)
        return next(found, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`inject` returns what takes it back. `spares`: the scheduler may live on; `fuse`: only its fuse can end it."""

    kind: str
    target: str
    inject: Callable[[Scene], Callable[[], None]]
    spares: bool = False
    fuse: bool = False
    stuck: bool = False
    """The controller leads on while the scheduler is gone: none comes before the agent does."""


def _kill_controller(scene: Scene) -> Callable[[], None]:
    scene.primary.signal_component("controller", signal.SIGKILL)
    return lambda: None  # its agent starts it again


def _stop_controller(scene: Scene) -> Callable[[], None]:
    scene.primary.signal_component("controller", signal.SIGTERM)
    return lambda: None


def _freeze(scene: Scene, *, agent: bool, controller: bool) -> Callable[[], None]:
    host = scene.primary
    if agent:
        host.signal_agent(signal.SIGSTOP)
    if controller:
        host.signal_component("controller", signal.SIGSTOP)

    def thaw() -> None:
        if controller:
            host.signal_component("controller", signal.SIGCONT)
        if agent:
            host.signal_agent(signal.SIGCONT)

    return thaw


def _end_agent(scene: Scene, number: int) -> Callable[[], None]:
    host = scene.primary
    host.signal_agent(number)
    host.reap_agent()
    return host.launch


def _end_member(scene: Scene, number: int, *, leading: bool) -> Callable[[], None]:
    member = scene.cluster.members[scene.leading()] if leading else scene.local
    assert member.process is not None
    member.process.send_signal(number)
    member.process.wait()
    return lambda: member.start(scene.cluster.members)


def _freeze_member(scene: Scene, *, leading: bool) -> Callable[[], None]:
    member = scene.cluster.members[scene.leading()] if leading else scene.local
    process = member.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    return lambda: process.send_signal(signal.SIGCONT)


def _cut(scene: Scene, *, leading: bool = False, agent: bool = False) -> Callable[[], None]:
    net = scene.cluster.nets[scene.leading()] if leading else scene.primary.net
    thaw = _freeze(scene, agent=agent, controller=False)
    net.cut()

    def mend() -> None:
        net.mend()
        thaw()

    return mend


def _cut_pair(scene: Scene) -> Callable[[], None]:
    """The primary does not see one of the others, which sees the third."""
    net = scene.primary.net
    net.cut_from(next(other for other in scene.cluster.nets if other is not net))
    return net.mend


FAULTS = (
    Fault(kind=KILL, target="controller", inject=_kill_controller, spares=True),
    Fault(
        kind=KILL,
        target="agent",
        inject=lambda scene: _end_agent(scene, signal.SIGKILL),
        fuse=True,
        stuck=True,
    ),
    Fault(
        kind=KILL,
        target="etcd beside the primary",
        inject=lambda scene: _end_member(scene, signal.SIGKILL, leading=False),
        spares=True,
    ),
    Fault(
        kind=KILL,
        target="etcd's leader",
        inject=lambda scene: _end_member(scene, signal.SIGKILL, leading=True),
        spares=True,
    ),
    Fault(kind=STOP, target="controller", inject=_stop_controller),
    Fault(kind=STOP, target="agent", inject=lambda scene: _end_agent(scene, signal.SIGTERM)),
    Fault(
        kind=STOP,
        target="etcd beside the primary",
        inject=lambda scene: _end_member(scene, signal.SIGTERM, leading=False),
        spares=True,
    ),
    Fault(
        kind=SIGSTOP,
        target="agent and controller",
        inject=lambda scene: _freeze(scene, agent=True, controller=True),
        fuse=True,
    ),
    Fault(
        kind=SIGSTOP,
        target="controller",
        inject=lambda scene: _freeze(scene, agent=False, controller=True),
    ),
    Fault(
        kind=SIGSTOP,
        target="agent",
        inject=lambda scene: _freeze(scene, agent=True, controller=False),
        fuse=True,
        stuck=True,
    ),
    Fault(
        kind=SIGSTOP,
        target="etcd's leader",
        inject=lambda scene: _freeze_member(scene, leading=True),
        spares=True,
    ),
    Fault(kind=PARTITION, target="host link of the primary", inject=_cut),
    Fault(kind=PARTITION, target="host link, agent stopped", inject=lambda scene: _cut(scene, agent=True), fuse=True),
    Fault(
        kind=PARTITION,
        target="host link of etcd's leader",
        inject=lambda scene: _cut(scene, leading=True),
        spares=True,
    ),
    Fault(kind=PARTITION, target="primary from one other host", inject=_cut_pair, spares=True),
)
