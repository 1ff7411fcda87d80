#!/bin/sh
# Build the package for RHEL 9 and what is like it (kernel 5.14, systemd 252, python3.11), and print its path.
# usage: packaging/build-rpm.sh [OUTPUT_DIR]     default: dist
# Built on Debian 12 from the same staged tree as the Debian package; needs what packaging/build-deb.sh needs, and
# rpmbuild. XCE_REVISION= is the package's release, 1 by default.
set -eu
. "$(dirname "$0")/build-common.sh"

# There `python3` is another version.
version=$(umask 022 && PYTHON=/usr/bin/python3.11 packaging/stage.sh "$stage" /usr/lib/systemd/system "${XCE_REVISION:-1}")
install -D -m 644 LICENSE "$stage/usr/share/licenses/xce-node-manager/LICENSE"

# Directories that are this package's alone, then everything that is no directory.
{
    (cd "$stage" && find usr/lib/xce-node-manager usr/share/xce usr/share/licenses/xce-node-manager -type d) |
        sed 's|.*|%dir "/&"|'
    (cd "$stage" && find . ! -type d -printf '%P\n') | sed \
        -e 's|^etc/.*|%config(noreplace) "/&"|' -e t \
        -e 's|^usr/share/licenses/.*|%license "/&"|' -e t \
        -e 's|^usr/share/man/.*|%doc "/&"|' -e t \
        -e 's|.*|"/&"|'
} >"$work/list"

rpmbuild -bb --quiet --nodeps \
    --define "_topdir $work/rpm" --define "_rpmdir $out" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "program_version ${version%-*}" --define "program_revision ${version##*-}" \
    --define "stage $stage" --define "list $work/list" \
    packaging/rpm/xce-node-manager.spec >&2
echo "$out/xce-node-manager-$version.$(uname -m).rpm"
