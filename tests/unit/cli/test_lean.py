"""What an agent does without."""

import subprocess
import sys

import pytest

_CODE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from node_manager.cli import daemon
daemon._leave_out()
import asyncio, hashlib
print(hashlib.sha256(b"x").hexdigest()[:8], hashlib.blake2b(b"x", key=b"k", digest_size=4).hexdigest())
print("libcrypto" in open("/proc/self/maps").read(), "libssl" in open("/proc/self/maps").read())
"""


@pytest.mark.parametrize(("missing", "openssl"), [((), False), (("_md5",), True)])
def test_openssl_is_left_out_where_python_has_the_digests(missing: tuple[str, ...], *, openssl: bool) -> None:
    """The digests are the same, nothing is printed; a Python that was built without its own ones keeps OpenSSL's."""
    command = [sys.executable, "-c", _CODE, *missing]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (f"2d711642 3e332a2e\n{openssl} False\n", "") == (done.stdout, done.stderr)


def test_the_agent_loads_no_archivers() -> None:
    """Neither argparse nor anything else brings bz2 and lzma along, with their libraries."""
    code = """
from node_manager.cli import daemon
status = daemon.main(["run", "--config=/nonexistent"])
from node_manager.cli import running
print(status, [name for name in ("libbz2", "liblzma") if name in open("/proc/self/maps").read()])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "78 []\n"
