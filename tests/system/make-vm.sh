#!/bin/sh
# Make the file system that emulated machines start from, with a kernel of its own, once; print its path.
# usage: make-vm.sh CACHE_DIR
set -eu
. "${0%/*}/make-once.sh"

make() {
    # The initial RAM disk holds what the root device needs, and nothing else: it is unpacked by an emulated processor.
    debian systemd,systemd-sysv,dbus,libpam-systemd,procps,python3,initramfs-tools,linux-image-cloud-amd64 "$1" \
        --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"' \
        --essential-hook='printf "MODULES=list\nRESUME=none\n" >"$1/etc/initramfs-tools/conf.d/xce"' \
        --essential-hook='printf "virtio_pci\nvirtio_blk\next4\n" >"$1/etc/initramfs-tools/modules"'
    # Nobody logs in, nothing comes and goes, and nothing is to wait for a device.
    chroot "$1" systemctl --quiet mask systemd-udevd.service systemd-udev-trigger.service serial-getty@ttyS0.service \
        getty@tty1.service systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer \
        dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
}

once vm "$1"
