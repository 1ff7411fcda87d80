"""The last good configuration, kept in the state directory for the day the file is wrong (DESIGN 7).

It is bound to the machine that it was good for: a cloned image must not come up as the host it was cloned from.
"""

import json
from pathlib import Path
from typing import Any

from node_manager.config.codec import decode_spec, encode_spec
from node_manager.core.spec import NodeSpec
from node_manager.runtime import files
from node_manager.runtime.clock import machine_id

MAX_BYTES = 4 * 1024 * 1024
"""Bound on what is read back; the validator's own answer has the same."""
_CLOUD_INSTANCE = Path("/var/lib/cloud/data/instance-id")
"""cloud-init's name for this instance: differs in a clone whose machine-id was not made anew."""


def encode(spec: NodeSpec) -> bytes:
    """Return the file's content."""
    return json.dumps({"version": 1, "machine": machine(), "spec": encode_spec(spec)}).encode()


def read(path: Path) -> NodeSpec | None:
    """Return the last good configuration of this machine, or None where there is none that can be trusted."""
    try:
        body: Any = json.loads(files.read(path, MAX_BYTES))
        if not isinstance(body, dict) or body.get("version") != 1 or body.get("machine") != machine():
            return None
        return decode_spec(body.get("spec"))
    except (OSError, ValueError, RecursionError):
        return None


def machine() -> str:
    """Return what tells this machine from a clone of it."""
    try:
        instance = _CLOUD_INSTANCE.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        instance = ""
    return f"{machine_id() or ''}/{instance}"
