"""Taking charge: what the disk and an earlier agent of this boot left, before the first decision is made."""

from collections.abc import Callable

import structlog

from node_manager.core.events import Booted, ConfigLoaded, Event
from node_manager.core.spec import ComponentSpec, NodeSpec
from node_manager.runtime import adoption, inheritance, kernel, record, stranded
from node_manager.runtime.clock import boottime_ns, machine_id
from node_manager.runtime.environment import Markers
from node_manager.runtime.process import Processes
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.recording import Recorder
from node_manager.runtime.settings import Settings
from node_manager.runtime.store import Store

log = structlog.get_logger("xce-node-manager")


class Takeover:
    """Reads what is kept, finds what runs, adopts it, and tells the core. `listen` opens a component's socket."""

    def __init__(
        self,
        settings: Settings,
        *,
        boot_id: str,
        nonce: str,
        store: Store,
        processes: Processes,
        recorder: Recorder,
        listen: Callable[[ComponentSpec, int, int | None], None],
        post: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._boot_id = boot_id
        self._nonce = nonce
        self._markers = Markers(nonce=nonce, runtime_dir=settings.runtime_dir)
        self._store = store
        self._processes = processes
        self._recorder = recorder
        self._listen = listen
        self._post = post
        self.ambiguous: set[str] = set()
        """Components that several processes claimed to be."""

    def boot(self, spec: NodeSpec, command_id: int | None, warning: str | None, *, identity: str | None = None) -> None:
        """Take charge under the first configuration; `identity`: in place of the one that it gives this host.

        Raises OSError when it cannot look for what runs.
        """
        stored = self._store.load(identity or spec.host.instance_id or machine_id() or spec.host.name)
        kept, note = record.read(self._settings.record_file, boot_id=self._boot_id, nonce=self._nonce)
        findings = self._search(kept, spec)
        self.ambiguous = inheritance.unclear(findings)
        for text in (stored.note, note, *inheritance.remarks(findings)):
            if text:
                log.warning("agent.warning", detail=text)
        self._post(
            Booted(
                boot_id=self._boot_id,
                facts=stored.facts,
                unreadable=stored.unreadable,
                leases=kept.leases,
                holds=(*kept.holds, *inheritance.holds(findings, boottime_ns())),
                highest_terms=kept.highest_terms,
            )
        )
        members = {component.name: component for component in spec.components}
        adopted, left = inheritance.take(findings, self._processes.adopt, self._processes.look_everywhere)
        self._processes.endings.begin(findings.stranded)
        for found in adopted:
            self._recorder.adopted(found)
            if found.component in members:
                # As whom it runs, whatever the configuration and whoever knows the users say by now.
                self._listen(members[found.component], found.generation, ProcFs().uid(found.pid))
        self._post(
            ConfigLoaded(
                spec=spec,
                found=adopted,
                past=inheritance.past(kept, findings, left),
                command_id=command_id,
                warning=warning,
            )
        )

    def end_stranded(self, spec: NodeSpec) -> None:
        """End what is left of checks and probes that a predecessor in this process has killed at a look.

        What they were just starting may have escaped that. Not to be called once there are new ones.
        """
        expected_uid = inheritance.expected_uid(spec, self._processes.accounts)
        try:
            self._processes.endings.begin(stranded.search(self._markers, expected_uid))
        except OSError as error:
            log.warning("agent.warning", detail=f"cannot look for what checks and probes left: {kernel.explain(error)}")

    def still_ambiguous(self, component: str, spec: NodeSpec) -> str | None:
        """Return why a component whose identity was unclear may not be started yet, or None where it may."""
        if component not in self.ambiguous:
            return None
        kept = record.RuntimeRecord(boot_id=self._boot_id, nonce=self._nonce)
        pids = inheritance.claimants(self._search(kept, spec), component)
        if pids:
            return inheritance.sentence(pids)
        self.ambiguous.discard(component)
        return None

    def _search(self, kept: record.RuntimeRecord, spec: NodeSpec) -> adoption.Findings:
        """Look for processes of an earlier agent, by the record, by their groups and by their markers."""
        groups = self._processes.groups
        if groups is not None:
            kept = inheritance.completed(kept, groups.births(), ProcFs())
        findings = adoption.find(kept, self._markers, inheritance.expected_uid(spec, self._processes.accounts))
        if groups is None:
            return findings
        return inheritance.with_left(findings, groups.left(component.name for component in spec.components))
