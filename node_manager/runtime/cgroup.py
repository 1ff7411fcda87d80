"""One cgroup for each component, below the group that was delegated to the agent.

    agent/            the agent, and its components' reload and drain commands
    beside/           checks before a start and exec probes, a group for each run
    fuse/             what guards the leases
    NAME/             a component
    NAME.GENERATION/  a component that depends on a lease: its fuse guards this group, and no later one
    NAME/main         a component of which SIGKILL reaches the main process alone (kill scope `process`): its limits
    NAME/jobs         and what it may put elsewhere by itself, delegated to its user; the agent never kills there
                      unless everything is to go

A process is born in its group and takes its descendants along: nothing escapes, whatever it does to its session, its
parents and its environment, but what root itself moves. Each group carries, as an extended attribute, which process
was started in it: a second runtime record, which is there when the first is lost.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node_manager.core.facts import is_leased
from node_manager.core.spec import ComponentSpec, KillScope, LimitsSpec, NodeSpec
from node_manager.runtime import cgroupfs, kernel, regain
from node_manager.runtime.accounts import AccountError, Accounts
from node_manager.runtime.beside import BESIDE, Beside
from node_manager.runtime.cgroupfs import AGENT, Watches

FUSE = "fuse"
MAIN = "main"
JOBS = "jobs"
_RESERVED = frozenset({AGENT, BESIDE, FUSE})
_BIRTH = "user.xce"
"""The attribute that says which process was started in a group."""
LIMITS = {
    "memory_max": ("memory", "memory.max"),
    "cpu_weight": ("cpu", "cpu.weight"),
    "pids_max": ("pids", "pids.max"),
}
"""A limit of a role file -> its controller and its file."""
_NO_LIMIT = {"memory.max": "max", "cpu.weight": "100", "pids.max": "max"}
OOM_FRESH_S = 5.0
"""Kills for want of memory that are counted for all components together are told of what ends within this, or twice
this: a job may be killed for it at any time, and what is killed for another reason days later was not."""
_DELEGATED_FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """Which process was started in a group."""

    component: str
    generation: int
    pid: int
    start_ticks: int
    lease_until_ns: int | None


@dataclass(slots=True, kw_only=True)
class Group:
    """Where a component's processes are. `fd` is the directory that they are born in."""

    component: str
    generation: int
    """The newest one that was started here."""
    path: Path
    """The whole of it; `inner` is the part that the main process is in."""
    inner: Path
    fd: int
    was_there: bool = False
    """It may have been killed before: a child of this generation has to go there by itself."""
    oom_kills: int = 0
    """What the kernel had counted in `counted_in` when this generation was begun, or taken into charge."""
    counted_in: Path | None = None
    """Where its kills for want of memory are counted. None: nowhere."""


def claim(runtime_dir: Path, warn: Callable[[str], None]) -> tuple["Groups | None", str]:
    """The groups of an agent that was given a part of the tree, with itself moved aside; else None, and why."""
    place = cgroupfs.find()
    if place.path is None:
        return None, place.reason
    groups = Groups(place.path, warn=warn)
    try:
        groups.enter()
    except OSError as error:
        return None, f"cannot make {place.path / AGENT} the agent's own group: {kernel.explain(error)}"
    for refused in regain.set_again(place.path, runtime_dir / regain.RECORD):
        warn(refused)
    return groups, ""


class Groups:
    """The groups of one agent, below `root`. `warn` gets sentences about limits that are not enforced."""

    def __init__(self, root: Path, *, warn: Callable[[str], None] = lambda _text: None) -> None:
        self.root = root
        self._warn = warn
        self._name = cgroupfs.name_of(root)
        self._groups: dict[str, list[Group]] = {}
        """By component, the newest generation last; one only unless it is leased."""
        self.accounts = Accounts()
        self.beside = Beside(root)
        self._fuse_fd = -1
        self._oom_kills = 0
        self._aged_s = 0.0
        self.unenforced: dict[str, str] = {}
        """By component, why a limit of it is not enforced."""

    # --- the agent itself -------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Move the agent into its own group, so that controllers can be enabled beside it. Raises OSError.

        What it has started already (a reading of the configuration) goes along: one process left there would do.
        """
        own = self.root / AGENT
        if cgroupfs.group_of(os.getpid()) != f"{self._name}/{AGENT}":
            if own.is_dir():
                cgroupfs.remove(own)  # as in `open`: the children of one that was killed fare the same
            own.mkdir(exist_ok=True)
            cgroupfs.write(own, "cgroup.procs", str(os.getpid()))
            for pid in cgroupfs.read(self.root, "cgroup.procs").split():
                with suppress(OSError):  # it has just ended
                    cgroupfs.write(own, "cgroup.procs", pid)
        self.beside.clear()

    def fuse_fd(self) -> int:
        """The directory of the group for fuses, until it is asked for again. Raises OSError.

        A new one where nothing lives in it, as in `open`. A fuse that lives there shows that it was not killed since.
        """
        if self._fuse_fd >= 0:
            os.close(self._fuse_fd)
            self._fuse_fd = -1
        path = self.root / FUSE
        _made_anew(path)
        if cgroupfs.frozen(path):  # what is born there would keep the agent's lock after it
            raise OSError(f"the cgroup {path} is frozen; {cgroupfs.THAW}")
        self._fuse_fd = _open(path)
        return self._fuse_fd

    def close(self) -> None:
        """Let go of everything, and remove what is empty."""
        for component in list(self._groups):
            self.forget(component)
        self.beside.close()
        if self._fuse_fd >= 0:
            os.close(self._fuse_fd)
            self._fuse_fd = -1

    # --- configuration ----------------------------------------------------------------------------------------------

    def configure(self, spec: NodeSpec) -> None:
        """Enable what the limits of this configuration need, set them on what runs, remove what nobody needs."""
        names = {component.name for component in spec.components}
        for name in [name for name in self._groups if name not in names]:
            self.forget(name)
        self.unenforced = {name: why for name, why in self.unenforced.items() if name in names}
        for component in spec.components:
            for group in self._groups.get(component.name, ()):
                self._limit(group, component)
                if group.counted_in != group.inner and _oom_kills(group.inner) is not None:
                    self._count_oom_kills(group)  # it has a controller now

    def _limit(self, group: Group, spec: ComponentSpec) -> None:
        """Set the limits of a component on its group; those that it does not have are lifted."""
        self.unenforced.pop(spec.name, None)
        wanted = _wanted(spec.limits)
        try:
            self._enable(group, {controller for controller, _file, value in wanted if value is not None})
            for _controller, file, value in wanted:
                if value is not None:
                    cgroupfs.write(group.inner, file, str(value))
                elif (group.inner / file).exists():
                    cgroupfs.write(group.inner, file, _NO_LIMIT[file])
        except (OSError, ValueError) as error:
            why = kernel.explain(error) if isinstance(error, OSError) else str(error)
            self.unenforced[spec.name] = why
            self._warn(f"limits of {spec.name} are not enforced: {why}")

    def _enable(self, group: Group, controllers: set[str]) -> None:
        """Have these controllers in a group. Raises OSError, and ValueError with a clause where there are none."""
        for parent in (self.root, *([group.path] if group.inner != group.path else [])):
            enabled = set(cgroupfs.read(parent, "cgroup.subtree_control").split())
            missing = sorted(controllers - enabled)
            if not missing:
                continue
            absent = [name for name in missing if name not in cgroupfs.read(parent, "cgroup.controllers").split()]
            if absent:
                raise ValueError(f"the controllers {', '.join(absent)} are not in the cgroup v2 tree here")
            cgroupfs.write(parent, "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))

    # --- groups of components ---------------------------------------------------------------------------------------

    def open(self, spec: ComponentSpec, generation: int) -> Group:
        """The group that this generation is to be born in, with its limits. Raises OSError.

        It is a new one wherever nothing lives in the old: some kernels (6.14 and later, and what was made of them) kill
        every child that is made by CLONE_INTO_CGROUP in a group that was killed before, by whomever. What was killed
        may still be dying, so that its group stays.
        """
        for group in self._groups.get(spec.name, ()):
            if group.generation == generation:
                return group
        for old in list(self._groups.get(spec.name, ())):
            self._drop(old)
        name = _name(spec.name)
        if any(is_leased(fact) for fact in spec.run_while):
            name = f"{name}.{generation}"
        path = self.root / name
        scoped = spec.stop.kill_scope is KillScope.PROCESS
        inner = path / MAIN if scoped else path
        was_there = not _made_anew(inner)
        if scoped:
            _make_jobs(path, spec.user, self.accounts)
        group = Group(component=spec.name, generation=generation, path=path, inner=inner, fd=_open(inner))
        group.was_there = was_there
        self._groups.setdefault(spec.name, []).append(group)
        self._limit(group, spec)
        self._count_oom_kills(group)
        return group

    def born(self, group: Group, pid: int, start_ticks: int, lease_until_ns: int | None) -> None:
        """Write on the group which process was started in it."""
        words = (group.component, group.generation, pid, start_ticks, lease_until_ns or 0)
        with suppress(OSError):  # then there is the runtime record
            os.setxattr(group.inner, _BIRTH, " ".join(map(str, words)).encode())

    def left(self, components: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Of which of these something lives in a group, and the newest generation that was started there."""
        births = {birth.component: birth.generation for birth in self.births()}
        for component in components:
            name = _name(component)
            with suppress(OSError):
                groups = [path for path in self.root.iterdir() if path.name.partition(".")[0] == name and path.is_dir()]
                if any(cgroupfs.populated(path) for path in groups):
                    yield component, births.get(component, 0)

    def births(self) -> Iterator[Birth]:
        """What is written on the groups: which processes were started in them, alive or not."""
        with suppress(FileNotFoundError):
            for path in sorted(self.root.iterdir()):
                for inner in (path, path / MAIN):
                    birth = _birth(inner)
                    if birth is not None:
                        yield birth

    def adopt(self, component: str, generation: int, pid: int) -> bool:
        """Take a process of an earlier agent's into charge; False: it is in no group of this component."""
        relative = self.relative(cgroupfs.group_of(pid))
        if relative is None or component in self._groups:
            return False
        top, _, rest = relative.partition("/")
        if top.partition(".")[0] != _name(component):
            return False
        path = self.root / top
        inner = path / MAIN if rest.partition("/")[0] == MAIN else path
        try:
            fd = _open(inner)
        except OSError:  # it has just ended
            return False
        group = Group(component=component, generation=generation, path=path, inner=inner, fd=fd)
        self._count_oom_kills(group)
        self._groups[component] = [group]
        return True

    def inherit(self, component: str) -> None:
        """Take what an earlier agent left of a component without its main process into charge."""
        if component in self._groups:
            return
        name = _name(component)
        found = []
        with suppress(OSError):
            for path in sorted(self.root.iterdir()):
                top, _, number = path.name.partition(".")
                if path.is_dir() and top == name and (not number or number.isdecimal()):
                    inner = path / MAIN if (path / MAIN).is_dir() else path
                    generation = int(number or 0)
                    found.append(
                        Group(component=component, generation=generation, path=path, inner=inner, fd=_open(inner))
                    )
        if found:
            self._groups[component] = sorted(found, key=lambda group: group.generation)

    def forget(self, component: str) -> None:
        """The component is no more: remove its groups where they are empty."""
        for group in self._groups.pop(component, []):
            os.close(group.fd)
            _remove(group)

    def emptied(self, component: str) -> None:
        """Nothing of the component lives: its groups have done their duty."""
        for group in list(self._groups.get(component, ())):
            self._drop(group)

    def _drop(self, group: Group) -> None:
        os.close(group.fd)
        _remove(group)
        kept = [other for other in self._groups[group.component] if other is not group]
        if kept:
            self._groups[group.component] = kept
        else:
            del self._groups[group.component]

    # --- questions and kills ----------------------------------------------------------------------------------------

    def of(self, component: str, newest: int) -> list[Group]:
        """The groups of a component in which nothing newer was started."""
        return [group for group in self._groups.get(component, ()) if group.generation <= newest]

    def path_of(self, component: str, generation: int) -> str:
        """Where the main process of a generation is; "": in no group."""
        groups = (group for group in self._groups.get(component, ()) if group.generation == generation)
        return next((str(group.inner) for group in groups), "")

    def paths(self, component: str, newest: int, mark: str = "") -> list[Path]:
        """The same as paths; or the group of the command with this mark."""
        if mark:
            return self.beside.paths(component, mark)
        return [group.path for group in self.of(component, newest)]

    def kill(self, component: str, newest: int, mark: str = "") -> None:
        """SIGKILL everything in them at once, with what it is just making. Raises OSError where that cannot be.

        ENOENT: the kernel (before 5.14) does not know how.
        """
        for path in self.paths(component, newest, mark):
            try:
                cgroupfs.write(path, "cgroup.kill", "1")
            except OSError as error:
                if error.errno not in kernel.GROUP_GONE or path.is_dir():
                    raise

    def populated(self, component: str, newest: int, mark: str = "") -> bool:
        """Whether anything lives in them. Raises OSError when it cannot look."""
        return any(cgroupfs.populated(path) for path in self.paths(component, newest, mark))

    def members(self, component: str, newest: int, mark: str = "") -> Iterator[int]:
        """Every process in them. Raises OSError when it cannot look."""
        for path in self.paths(component, newest, mark):
            yield from cgroupfs.processes(path)

    def oom_killed(self, component: str, generation: int) -> bool:
        """Whether the kernel has killed in this generation's group for want of memory; asked once it has ended."""
        groups = [group for group in self._groups.get(component, ()) if group.generation == generation]
        return any(self._take_oom_kill(group) for group in groups)

    def _count_oom_kills(self, group: Group) -> None:
        """Count from now on: in the group, or for all components together where it has no memory controller.

        The delegated group has one from systemd (MemoryAccounting=), also where no limit is configured below it.
        """
        for path in (group.inner, self.root):
            count = _oom_kills(path)
            if count is not None:
                group.counted_in, group.oom_kills = path, count
                return
        group.counted_in = None

    def age(self, now_s: float) -> None:
        """Let what ended no component in time be nobody's. Called at each pulse of the loop."""
        if now_s - self._aged_s < OOM_FRESH_S:
            return
        self._aged_s = now_s
        for group in (one for groups in self._groups.values() for one in groups):
            if group.counted_in == self.root:
                group.oom_kills = max(group.oom_kills, self._oom_kills)
        self._oom_kills = _oom_kills(self.root) or 0

    def _take_oom_kill(self, group: Group) -> bool:
        """Whether one was counted; what is counted for all components together is taken by the first that ends."""
        count = None if group.counted_in is None else _oom_kills(group.counted_in)
        if count is None or count <= group.oom_kills:
            return False
        for other in (one for groups in self._groups.values() for one in groups):
            if other.counted_in == group.counted_in:
                other.oom_kills = count
        return True

    def component_of(self, pid: int) -> str | None:
        """Whose group a process is in; one in a component's jobs is nobody's."""
        relative = self.relative(cgroupfs.group_of(pid))
        if relative is None:
            return None
        for component, groups in self._groups.items():
            for group in groups:
                inner = group.inner.relative_to(self.root).as_posix()
                if relative == inner or relative.startswith(f"{inner}/"):
                    return component
        return self.beside.component_of(relative)

    def relative(self, name: str | None) -> str | None:
        """The path below the root of a group that /proc/PID/cgroup names; None: it is elsewhere."""
        prefix = f"{self._name}/"
        return name.removeprefix(prefix) if name is not None and name.startswith(prefix) else None

    def watch(
        self, watches: Watches, component: str, newest: int, changed: Callable[[], None], mark: str = ""
    ) -> list[int]:
        """Have every change of their being empty told."""
        return [watches.add(path, changed) for path in self.paths(component, newest, mark)]


def _name(component: str) -> str:
    """A component's group; no component's name has an underscore."""
    return f"{component}_" if component in _RESERVED else component


def _wanted(limits: LimitsSpec) -> list[tuple[str, str, int | None]]:
    return [(controller, file, getattr(limits, name)) for name, (controller, file) in LIMITS.items()]


def _made_anew(path: Path) -> bool:
    """Make a group; where there is one, and nothing lives in it, another in its place. False: it is the old one."""
    new = not path.is_dir() or cgroupfs.remove(path)
    path.mkdir(parents=True, exist_ok=True)
    return new


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _make_jobs(path: Path, user: str | None, accounts: Accounts) -> None:
    """The group for jobs: its user may make groups in it and move processes of the component there. Raises OSError."""
    jobs = path / JOBS
    jobs.mkdir(exist_ok=True)
    if user is None or os.geteuid() != 0:
        return
    try:
        account = accounts.find(user)
    except AccountError:
        return  # it cannot be started either
    files: Iterable[Path] = (jobs, *(jobs / name for name in _DELEGATED_FILES), path / "cgroup.procs")
    for file in files:
        os.chown(file, account.uid, account.gid)


def _oom_kills(path: Path) -> int | None:
    """What the kernel has counted in a group and below it; None: it does not."""
    try:
        return cgroupfs.counters(path, "memory.events").get("oom_kill")
    except OSError:
        return None


def _birth(path: Path) -> Birth | None:
    try:
        words = os.getxattr(path, _BIRTH).decode("ascii").split()
        component, generation, pid, start_ticks, lease = words[0], *map(int, words[1:5])
    except (OSError, ValueError, IndexError):
        return None
    return Birth(
        component=component, generation=generation, pid=pid, start_ticks=start_ticks, lease_until_ns=lease or None
    )


def _remove(group: Group) -> None:
    """Remove it where it is empty; a component's jobs keep theirs."""
    with suppress(OSError):
        if not cgroupfs.populated(group.path):
            cgroupfs.remove(group.path)
