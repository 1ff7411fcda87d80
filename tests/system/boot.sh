#!/bin/bash
# Boot a real systemd as PID 1 of namespaces of its own, with util-linux alone. All mounts are in a private mount
# namespace: with the last process everything is gone but the directories of the overlay.
# usage: boot.sh NAME CGROUP LOWER UPPER WORK MOUNT [SHARED]
#   CGROUP  a cgroup v2 directory, to be made      LOWER  the overlay's lower directories, separated by colons
#   SHARED  a directory that several machines see at /srv/shared
# Each boot has a boot id of its own, and its CLOCK_MONOTONIC and CLOCK_BOOTTIME begin anew, as on a machine. The wall
# clock is the host's.
set -eu
read -r up _ </proc/uptime
past=$((5 - ${up%.*})) # systemd takes a zero for "not known"
mkdir "$2"
echo $BASHPID >"$2/cgroup.procs"
# With its parent the machine is gone too, however that one ends.
exec setpriv --pdeathsig KILL unshare --mount --cgroup --pid --uts --ipc --net --time --monotonic $past --boottime $past \
    --fork --kill-child --propagation private \
    bash -ec '
        name=$1 lower=$2 upper=$3 work=$4 root=$5 shared=${6-}
        hostname "$name"
        ip link set lo up
        mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work" "$root"
        cd "$root"
        mount -t proc proc proc
        # It is the host itself.
        mount --bind proc/sys proc/sys
        mount -o remount,bind,ro proc/sys
        mount -t sysfs -o ro sysfs sys
        mount -t cgroup2 cgroup2 sys/fs/cgroup
        mount -t tmpfs -o mode=755 tmpfs run
        mount -t tmpfs -o mode=1777 tmpfs tmp
        mount -t tmpfs -o mode=755 tmpfs dev
        mkdir dev/pts dev/shm
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
        for node in null zero full random urandom tty; do
            touch dev/$node
            mount --bind /dev/$node dev/$node
        done
        ln -s pts/ptmx dev/ptmx
        ln -s /proc/self/fd dev/fd
        for number in 0 1 2; do ln -s /proc/self/fd/$number dev/$(set -- stdin stdout stderr; shift $number; echo $1); done
        mkdir -p run/host
        echo xce >run/host/container-manager
        cat /proc/sys/kernel/random/uuid >run/host/boot-id
        mount --bind run/host/boot-id proc/sys/kernel/random/boot_id
        if [ -n "$shared" ]; then
            mkdir -p srv/shared
            mount --bind "$shared" srv/shared
        fi
        pivot_root . mnt
        umount -l /mnt
        exec env -i container=xce container_uuid="$(cat /proc/sys/kernel/random/uuid)" \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=true --log-target=journal
    ' boot "$1" "$3" "$4" "$5" "$6" "${7-}"
