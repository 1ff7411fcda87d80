#!/bin/sh
# Run `systemd --user` in a cgroup of its own and a private mount namespace, where /sys/fs/cgroup is the one tree of
# version 2 and /run/systemd/system exists, so that sd_booted(3) holds.
# usage: systemd-user.sh CGROUP RUNTIME_DIRECTORY UNIT_DIRECTORY
set -e
for tree in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
    [ -e "$tree/cgroup.procs" ] || continue
    mkdir -p "$tree/$1"
    echo $$ >"$tree/$1/cgroup.procs"
done
export XDG_RUNTIME_DIR="$2" SYSTEMD_UNIT_PATH="$3" XDG_CONFIG_HOME="$2/config" XDG_DATA_HOME="$2/data"
export XDG_CONFIG_DIRS="$2/configs" XDG_DATA_DIRS="$2/datas"
unset DBUS_SESSION_BUS_ADDRESS
exec unshare -m --propagation private sh -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
    mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system &&
    exec /lib/systemd/systemd --user --log-target=console --log-level=notice'
