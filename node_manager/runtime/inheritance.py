"""What an agent takes over from an earlier one of this boot, as the core wants to hear it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from node_manager.core.events import Found, KeptHold, Past
from node_manager.core.spec import NodeSpec
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.adoption import NS_PER_TICK, Ambiguous, Findings, Proven
from node_manager.runtime.cgroup import Birth
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.record import Kept, RuntimeRecord


def take(
    findings: Findings, adopt: Callable[[Proven], bool], look_everywhere: Callable[[str], None]
) -> tuple[tuple[Found, ...], dict[str, int]]:
    """Adopt what is proven. Return it, and the newest generation of each component that may have left something.

    What has ended since it was proven may have: it is as if it had ended before.
    """
    adopted: list[Found] = []
    left = dict(findings.leftovers)
    for proven in findings.proven:
        if adopt(proven):
            adopted.append(proven.found)
        else:
            left[proven.found.component] = proven.found.generation
    for name in left:
        look_everywhere(name)
    return tuple(adopted), left


def past(kept: RuntimeRecord, findings: Findings, left: Mapping[str, int]) -> tuple[Past, ...]:
    """Return what is known of earlier runs, and of which of them something is left that nobody is in charge of."""
    unclear = {item.component for item in findings.ambiguous}
    known = {item.component: item for item in kept.past}
    for name, generation in left.items():
        if name not in unclear:
            item = known.get(name, Past(component=name, generation=0))
            known[name] = replace(item, generation=max(item.generation, generation), left=True)
    return tuple(known.values())


def completed(kept: RuntimeRecord, births: Iterable[Birth], procfs: ProcFs) -> RuntimeRecord:
    """Return the record with the processes that live in a component's group and that it does not know.

    What stands on a group was written by an agent at the start: it is a second record, where the first one was lost.
    """
    known = {one.found.component: one for one in kept.processes}
    for birth in births:
        recorded = known.get(birth.component)
        stat = procfs.stat(birth.pid)
        lives = stat is not None and stat.living and stat.start_ticks == birth.start_ticks
        if lives and (recorded is None or recorded.found.generation < birth.generation):
            found = Found(
                component=birth.component,
                pid=birth.pid,
                generation=birth.generation,
                started_ns=birth.start_ticks * NS_PER_TICK,
                lease_until_ns=birth.lease_until_ns,
            )
            known[birth.component] = Kept(found=found, start_ticks=birth.start_ticks)
    return replace(kept, processes=tuple(known.values()))


def with_left(findings: Findings, left: Iterable[tuple[str, int]]) -> Findings:
    """Return the findings with what lives in a component's group without a main process, markers or not."""
    proven = {item.component for item in findings.found}
    leftovers = dict(findings.leftovers)
    for name, generation in left:
        if name not in proven:
            leftovers[name] = max(generation, leftovers.get(name, 0))
    return replace(findings, leftovers=tuple(sorted(leftovers.items())))


def holds(findings: Findings, now: int) -> tuple[KeptHold, ...]:
    """Hold what several processes claim to be: none is signalled or started until an operator has looked."""
    return tuple(
        KeptHold(component=item.component, reason=sentence(item.pids), since_ns=now) for item in _unproven(findings)
    )


def remarks(findings: Findings) -> tuple[str, ...]:
    """Return what the log should say of the search."""
    return (
        *(f"{item.component}: {sentence(item.pids)}" for item in _unproven(findings)),
        *(
            f"{item.component}: pid {item.pid} of the runtime record is not adopted: {item.reason}"
            for item in findings.gone
        ),
        *(
            f"{run.owner.component}: pid {', '.join(map(str, run.pids))} of a check, probe or command "
            "of an earlier agent is killed with its tree"
            for run in findings.stranded
        ),
    )


def unclear(findings: Findings) -> set[str]:
    """Return the components that several processes claim to be."""
    return {item.component for item in _unproven(findings)}


def claimants(findings: Findings, component: str) -> tuple[int, ...]:
    """Return the living processes that claim to be a component; the search's descriptors are closed."""
    pids: list[int] = []
    for item in findings.proven:
        item.close()
        if item.found.component == component:
            pids.append(item.found.pid)
    for unclear_item in findings.ambiguous:
        if unclear_item.component == component:
            pids.extend(unclear_item.pids)
    return tuple(sorted(set(pids)))


def expected_uid(spec: NodeSpec, accounts: Accounts) -> Callable[[str], int | None]:
    """Return the look-up of the user that each component's process must have; None: any will do."""
    users = {component.name: component.user for component in spec.components}
    accounts.prepare(set(users.values()))

    def uid(component: str) -> int | None:
        if component not in users:
            return None
        return accounts.uid(users[component])

    return uid


def _unproven(findings: Findings) -> list[Ambiguous]:
    proven = {item.found.component for item in findings.proven}
    return [item for item in findings.ambiguous if item.component not in proven]


def sentence(pids: tuple[int, ...]) -> str:
    """Return what an operator is told of processes that claim to be a component."""
    listed = ", ".join(str(pid) for pid in pids)
    return (
        f"ambiguous: each of the processes {listed} could be it; end the wrong ones and restart the node manager, "
        "or end all of them and start it"
    )
