# Sourced by make-root.sh and make-vm.sh: a file system of Debian's packages that is made once and kept.
# shellcheck shell=sh

# debian INCLUDED DIRECTORY [OPTION...]: a small Debian with these packages, without what only people read.
debian() {
    included=$1
    directory=$2
    shift 2
    mmdebstrap --quiet --variant=minbase --include="$included" --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' "$@" \
        bookworm "$directory"
    : >"$directory/etc/machine-id"
}

# once NAME CACHE_DIR: have `make DIRECTORY` make it, unless it is there already, and print its path. Whoever comes
# meanwhile waits. Another content of the script, or of this file, makes another one.
once() {
    kept=$2/$1-$(cat "$0" "${0%/*}/make-once.sh" | sha256sum | cut -c1-12)
    mkdir -p "$2"
    exec 9>"$2/lock"
    flock 9
    if [ ! -d "$kept" ]; then
        rm -rf "$kept.new"
        make "$kept.new" >&2
        mv "$kept.new" "$kept"
    fi
    echo "$kept"
}
