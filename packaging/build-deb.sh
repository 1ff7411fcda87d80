#!/bin/sh
# Build the package for Debian 12 and print its path.
# usage: packaging/build-deb.sh [OUTPUT_DIR]     default: dist
# Needs Debian's python3 and python3-dev, gcc, and a pip (PIP=, by default that of .venv): packaging/system-setup.sh.
# XCE_REVISION= is the package's revision, 1 by default.
set -eu
. "$(dirname "$0")/build-common.sh"

version=$(umask 022 && packaging/stage.sh "$stage" /lib/systemd/system "${XCE_REVISION:-1}")
architecture=$(dpkg --print-architecture)

install -d "$stage/DEBIAN" "$stage/usr/share/doc/xce-node-manager" "$stage/usr/share/lintian/overrides"
for script in preinst postinst prerm postrm; do
    [ ! -e "packaging/deb/$script" ] || install -m 755 "packaging/deb/$script" "$stage/DEBIAN/$script"
done
install -m 644 packaging/deb/copyright "$stage/usr/share/doc/xce-node-manager/copyright"
install -m 644 packaging/deb/lintian-overrides "$stage/usr/share/lintian/overrides/xce-node-manager"
(cd "$stage" && find etc -type f -printf '/%p\n') >"$stage/DEBIAN/conffiles"
{
    echo "xce-node-manager ($version) stable; urgency=medium"
    echo
    echo "  * See CHANGELOG.md in the sources."
    echo
    echo " -- The XCE developers <xce@example.org>  $(date -uRd "@$SOURCE_DATE_EPOCH")"
} | gzip -9nc >"$stage/usr/share/doc/xce-node-manager/changelog.Debian.gz"
sed -e "s|@VERSION@|$version|" -e "s|@ARCHITECTURE@|$architecture|" \
    -e "s|@SIZE@|$(du -ks --exclude=DEBIAN "$stage" | cut -f1)|" packaging/deb/control >"$stage/DEBIAN/control"
(cd "$stage" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"

package=$out/xce-node-manager_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$stage" "$package" >/dev/null
echo "$package"
