"""An agent without a configuration: what it would be in charge of, for whoever looks, and for its own end.

It has no identity yet, so it takes nothing into charge and changes no file. But a host that was decommissioned must
not look like one that never was, and components that an earlier agent left must not run on unsaid.
"""

import json
import socket
from pathlib import Path

from node_manager.core import latches
from node_manager.core.events import HostState
from node_manager.core.spec import HostSpec, NodeSpec
from node_manager.runtime import adoption, files, record
from node_manager.runtime.environment import Markers
from node_manager.runtime.record import RuntimeRecord
from node_manager.runtime.settings import Settings
from node_manager.runtime.store import MAX_FACTS_BYTES, Store

_FACTS = "facts.json"


def kept_identity(state_dir: Path) -> str | None:
    """Return whose durable facts these are, as they say themselves; None: nobody's, or it cannot be read."""
    try:
        body = json.loads(files.read(state_dir / _FACTS, MAX_FACTS_BYTES))
        found = body["record"]["facts"]["identity"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def nothing() -> NodeSpec:
    """Return a configuration in which nothing is to run: whatever is found under it is stopped in its own way."""
    return NodeSpec(host=HostSpec(name=socket.gethostname()), roles=(), components=())


def latched(state_dir: Path) -> str | None:
    """Say what the durable facts forbid, whoever this host is; None: nothing."""
    loaded = Store(state_dir).load(kept_identity(state_dir) or "")  # its own identity: nothing is put aside
    if loaded.unreadable is not None:
        return f"{loaded.unreadable}; with a configuration this host counts as decommissioned"
    state = latches.host_state(loaded.facts)
    latch = latches.ruling_latch(loaded.facts)
    if state is HostState.ACTIVE or latch is None:
        return None
    return (
        f"the host {loaded.facts.identity} is {state.value}, by {latch.by}"
        f"{f': {latch.reason}' if latch.reason else ''}; in force as soon as its configuration is"
    )


def running(settings: Settings, *, boot_id: str, nonce: str) -> str | None:
    """Say what an earlier agent of this boot left running; None: nothing. Raises OSError where it cannot be told."""
    kept, _note = record.read(settings.record_file, boot_id=boot_id, nonce=nonce)
    findings = find(kept, settings, nonce)
    claims: list[tuple[str, tuple[int, ...]]] = [(one.found.component, (one.found.pid,)) for one in findings.proven]
    claims += [(item.component, item.pids) for item in findings.ambiguous]
    for item in findings.proven:
        item.close()
    named = {name for name, _pids in claims}
    listed = [f"{name} (pid {', '.join(map(str, pids))})" for name, pids in sorted(claims)]
    listed += [f"something of {name}" for name, _generation in findings.leftovers if name not in named]
    if not listed:
        return None
    return (
        f"an earlier agent left running: {', '.join(listed)}; nobody is in charge of it until there is a configuration"
    )


def find(kept: RuntimeRecord, settings: Settings, nonce: str) -> adoption.Findings:
    """Look for processes of an earlier agent, whatever they are configured as."""
    markers = Markers(nonce=nonce, runtime_dir=settings.runtime_dir)
    return adoption.find(kept, markers, lambda _component: None)
