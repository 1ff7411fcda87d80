"""Three manager hosts: real agents, a real etcd, real networks between them, and what becomes of faults."""

import os
import shutil
from pathlib import Path

from tests.cluster import etcd as _etcd


def missing(*, c: bool) -> str:
    """Why the hosts cannot be made here; empty: they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for command in ("ip", "unshare", "nsenter", "setpriv", *(("make", "cc") if c else ())):
        if shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"{command} is not installed"
    if c and not (Path(__file__).parents[2] / "libxce").is_dir():
        return "the sources of libxce are not here"
    return _etcd.MISSING if _etcd.PROGRAM is None else ""
