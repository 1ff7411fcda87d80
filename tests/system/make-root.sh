#!/bin/sh
# Make the root file system that every machine of the system tests starts from, once; print its path.
# usage: make-root.sh CACHE_DIR
# Another content of this file makes another root.
set -eu
cache=$1
root=$cache/root-$(sha256sum "$0" | cut -c1-12)
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -d "$root" ]; then
    rm -rf "$root.new"
    # systemd and a bus as every Debian host has them; cloud-init with what it reads; a proxy; what tests ask with.
    mmdebstrap --quiet --variant=minbase \
        --include=systemd,systemd-sysv,dbus,libpam-systemd,udev,procps,iproute2,python3,curl,nginx-light \
        --include=cloud-init,python3-yaml,netplan.io \
        --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$root.new"
    # The node manager is what starts nginx; cloud-init runs where a test wants it; the rest has no business here.
    chroot "$root.new" systemctl --quiet mask nginx.service systemd-udevd.service \
        systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer
    touch "$root.new/etc/cloud/cloud-init.disabled"
    : >"$root.new/etc/machine-id"
    mv "$root.new" "$root"
fi
echo "$root"
