"""The package under test: built once, installed in a layer of its own, and made into other versions of itself."""

import re
import shutil
import subprocess
from pathlib import Path

LONG_S = 900.0
"""For what takes seconds on an idle machine."""
_HERE = Path(__file__).parent
_TREE = _HERE.parent.parent
_COMPONENTS = ("controller", "scheduler", "worker", "apiserver", "lease-keeper", "provisioner")
_INSTALL = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cp "$3" "$2/root/var/cache/package.deb"
mount -t proc proc "$2/root/proc"
mount -t devpts -o newinstance devpts "$2/root/dev/pts"
DEBIAN_FRONTEND=noninteractive chroot "$2/root" apt-get install -y /var/cache/package.deb
"""
GIVEN = "XCE_SYSTEM_PACKAGE"
"""A package to test in place of one that is built from this tree."""


def build(place: Path) -> None:
    """Build the package from this tree into a new directory."""
    place.mkdir()
    subprocess.run([_TREE / "packaging" / "build-deb.sh", place], check=True, stdout=subprocess.DEVNULL, timeout=LONG_S)


def layer(root: Path, package: Path, place: Path) -> Path:
    """Install the package as an operator does, with programs in the place of XCE's; return the layer above `root`."""
    for name in ("upper", "work", "root"):
        (place / name).mkdir(parents=True)
    subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _INSTALL, "install", root, place, package],
        check=True, stdout=subprocess.DEVNULL, timeout=LONG_S,
    )  # fmt: skip
    upper = place / "upper"
    programs = upper / "usr" / "local" / "bin"
    programs.mkdir(parents=True)
    lines = []
    for name in _COMPONENTS:
        shutil.copy(_HERE / "stand-in.sh", programs / f"xce-{name}")
        owner = "root root" if name == "worker" else "xce xce"
        lines.append(f"d /var/lib/xce/{name} 0755 {owner} -\n")
    (upper / "etc" / "tmpfiles.d").mkdir()
    (upper / "etc" / "tmpfiles.d" / "xce-stand-ins.conf").write_text("".join(lines), encoding="utf-8")
    return upper


def remade(package: Path, place: Path, version: str, *, prologue: str = "") -> Path:
    """Make another version of a package: the same program, but for its version and a prologue in the daemon."""
    place.mkdir(exist_ok=True)
    tree = place / version
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True, timeout=LONG_S)
    program = tree / "usr" / "lib" / "xce-node-manager" / "package"
    old = (program / "VERSION").read_text(encoding="ascii").strip()
    (program / "VERSION").write_text(f"{version}-1\n", encoding="ascii")
    for script in (program / "bin").glob("xce-*"):
        script.write_text(script.read_text().replace(f"/versions/{old}/", f"/versions/{version}-1/"), encoding="utf-8")
    site = next(program.glob("lib/python3*/site-packages/node_manager"))
    _replace(site / "__init__.py", r'__version__ = ".*"', f'__version__ = "{version}"')
    if prologue:
        daemon = site / "cli" / "daemon.py"
        _replace(daemon, r"(?m)^import argparse$", f"{prologue}\nimport argparse")
    _replace(tree / "DEBIAN" / "control", r"(?m)^Version: .*$", f"Version: {version}-1")
    made = place / f"xce-node-manager_{version}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, made],
        check=True, stdout=subprocess.DEVNULL, timeout=LONG_S,
    )  # fmt: skip
    shutil.rmtree(tree)
    return made


def _replace(path: Path, pattern: str, text: str) -> None:
    """Change a file; what was compiled from it before does not count any more."""
    changed, count = re.subn(pattern, lambda _match: text, path.read_text(encoding="utf-8"), count=1)
    assert count == 1, f"{pattern} is not in {path}"
    path.write_text(changed, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
