#!/bin/sh
# Install what building the packages and the system tests need, on Debian 12 as root.
# usage: packaging/system-setup.sh
set -eu
packages=""
for pair in mmdebstrap:mmdebstrap unshare:util-linux dpkg-deb:dpkg cc:gcc lintian:lintian man:man-db rpmbuild:rpm \
    qemu-system-x86_64:qemu-system-x86 mke2fs:e2fsprogs; do
    command -v "${pair%%:*}" >/dev/null || packages="$packages ${pair##*:}"
done
# The package's own Python is the distribution's, whatever `python3` is in PATH.
[ -e /usr/include/python3.11/Python.h ] || packages="$packages python3-dev libc6-dev"
[ -n "$packages" ] || exit 0
[ "$(id -u)" = 0 ] || {
    echo "cannot install$packages: run as root" >&2
    exit 1
}
apt-get update -qq
# shellcheck disable=SC2086  # a list of names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=600 \
    --no-install-recommends $packages
