#!/bin/sh
# Make the root file system that every machine of the system tests starts from, once; print its path.
# usage: make-root.sh CACHE_DIR
set -eu
. "${0%/*}/make-once.sh"

make() {
    # systemd and a bus as every Debian host has them; cloud-init with what it reads; a proxy; what tests ask with.
    debian systemd,systemd-sysv,dbus,libpam-systemd,udev,procps,iproute2,python3,curl,nginx-light,cloud-init,python3-yaml,netplan.io \
        "$1"
    # The node manager is what starts nginx; cloud-init runs where a test wants it; the rest has no business here.
    chroot "$1" systemctl --quiet mask nginx.service systemd-udevd.service systemd-networkd-wait-online.service \
        apt-daily.timer apt-daily-upgrade.timer
    touch "$1/etc/cloud/cloud-init.disabled"
}

once root "$1"
