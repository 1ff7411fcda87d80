#!/bin/sh
# Make a virtual environment with everything that running and testing from a source tree needs.
# usage: packaging/dev-setup.sh PYTHON VENV
set -eu
python=$1
venv=$2

# Debian splits venv from python3; the tests run a real nginx and call curl. Without root the tests that need a
# missing program say so and are skipped.
packages=""
"$python" -c 'import ensurepip' 2>/dev/null || packages="$packages python3-venv"
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || packages="$packages nginx-light"
command -v curl >/dev/null || packages="$packages curl"
# The parts in C are optional, but most tests are of them: a compiler, libc's and Python's headers.
command -v cc >/dev/null || packages="$packages gcc libc6-dev"
"$python" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null ||
    packages="$packages python3-dev"
# libxce's own tests: memory errors, and how other programs find the library.
command -v valgrind >/dev/null || packages="$packages valgrind"
command -v pkg-config >/dev/null || packages="$packages pkg-config"
# The cluster of three manager hosts: a real etcd, and networks between the hosts.
command -v etcd >/dev/null || packages="$packages etcd-server"
command -v ip >/dev/null || packages="$packages iproute2"
# System calls are made to fail, and writers killed at each of them.
command -v strace >/dev/null || packages="$packages strace"
# Components' files are rotated by the real thing.
command -v logrotate >/dev/null || [ -x /usr/sbin/logrotate ] || packages="$packages logrotate"
if [ -n "$packages" ] && command -v apt-get >/dev/null; then
    if [ "$(id -u)" = 0 ]; then
        apt-get update -qq
        # shellcheck disable=SC2086  # a list of names
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
    else
        echo "note: for every test, install as root: apt-get install$packages" >&2
    fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# The development tools and the run-time dependencies, from the one list in pyproject.toml.
"$venv/bin/python" - <<'EOF' >"$venv/requirements.txt"
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print("\n".join(project["dependencies"] + project["optional-dependencies"]["dev"]))
EOF
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$venv/requirements.txt"
