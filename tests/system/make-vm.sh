#!/bin/sh
# Make the file system that emulated machines start from, with a kernel of its own, once; print its path.
# usage: make-vm.sh CACHE_DIR
# Another content of this file makes another one.
set -eu
cache=$1
vm=$cache/vm-$(sha256sum "$0" | cut -c1-12)
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -d "$vm" ]; then
    rm -rf "$vm.new"
    # The initial RAM disk holds what the root device needs, and nothing else: it is unpacked by an emulated processor.
    mmdebstrap --quiet --variant=minbase \
        --include=systemd,systemd-sysv,dbus,libpam-systemd,procps,python3,initramfs-tools,linux-image-cloud-amd64 \
        --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"' \
        --essential-hook='printf "MODULES=list\nRESUME=none\n" >"$1/etc/initramfs-tools/conf.d/xce"' \
        --essential-hook='printf "virtio_pci\nvirtio_blk\next4\n" >"$1/etc/initramfs-tools/modules"' \
        bookworm "$vm.new"
    # Nobody logs in, nothing comes and goes, and nothing is to wait for a device.
    chroot "$vm.new" systemctl --quiet mask systemd-udevd.service systemd-udev-trigger.service serial-getty@ttyS0.service \
        getty@tty1.service systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer \
        dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
    : >"$vm.new/etc/machine-id"
    mv "$vm.new" "$vm"
fi
echo "$vm"
