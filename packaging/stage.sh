#!/bin/sh
# Lay out below a directory what a package installs: the program with everything that it imports, and its units, roles,
# manual pages and completions. Nothing is left in the source tree.
# usage: packaging/stage.sh DIRECTORY UNIT_DIR REVISION
#
# The program is a virtual environment of the distribution's own Python. The package has it in one place,
# /usr/lib/xce-node-manager/package; `activate`, which the package's scripts call, gives each version a directory of its
# own (hard links) and points /usr/lib/xce-node-manager/current at it last. So while a package manager replaces files,
# and when it fails half way, the installed version stays whole.
set -eu
cd "$(dirname "$0")/.."
stage=$1
unit_dir=$2
revision=$3
python=${PYTHON:-/usr/bin/python3}
pip=${PIP:-.venv/bin/pip}
lib=/usr/lib/xce-node-manager
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' node_manager/__init__.py)
home=$lib/versions/$version-$revision

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The wheel is built from a copy: a build leaves directories behind.
mkdir "$work/source" "$work/wheels"
tar -c --exclude=__pycache__ --exclude='*.so' --exclude=xce-fuse \
    node_manager native roles units packaging docs/reference setup.py pyproject.toml README.md LICENSE | tar -x -C "$work/source"

program=$stage$lib/package
mkdir -p "$program"
"$python" -m venv --without-pip "$program"
"$pip" --python "$program/bin/python3" wheel --quiet --wheel-dir "$work/wheels" "$work/source"
"$pip" --python "$program/bin/python3" install --quiet --no-index --no-compile --find-links "$work/wheels" xce-node-manager
[ -x "$(echo "$program"/lib/python3.*/site-packages/node_manager/runtime/xce-fuse)" ] || {
    echo "cannot build the parts in C: install gcc, libc6-dev and python3-dev" >&2
    exit 1
}

# What named the place where it was built names the place where it will be.
rm -rf "$program"/bin/[Aa]ctivate* "$program/.gitignore" "$program/include"
for script in "$program"/bin/xce-*; do
    sed -i "1s|.*|#!$home/bin/python3 -I|" "$script"
done
sed -i "/^command = /d" "$program/pyvenv.cfg"
find "$program" -name direct_url.json -o -name RECORD -o -name INSTALLER -o -name REQUESTED | while IFS= read -r file; do
    rm "$file"
done
"$python" -m compileall -q -s "$stage$lib/package" -p "$home" --invalidation-mode unchecked-hash "$program/lib"
echo "$version-$revision" >"$program/VERSION"

install -d "$stage/usr/bin" "$stage/usr/share" "$stage$unit_dir" "$stage/etc"
mv "$program/share/xce/logrotate" "$stage/etc/logrotate.d"
mv "$program"/share/* "$stage/usr/share/"
rmdir "$program/share"
mv "$program"/lib/systemd/system/* "$stage$unit_dir"
mv "$program"/lib/*.d "$stage/usr/lib/"
mv "$program/lib/xce-node-manager/release-controllers" "$stage$lib"
rm -r "$program/lib/systemd" "$program/lib/xce-node-manager"
for name in xce-node-manager xce-nodectl xce-reference; do
    ln -s "../lib/xce-node-manager/current/bin/$name" "$stage/usr/bin/$name"
done
install -m 755 packaging/activate "$stage$lib"
find "$stage/usr/share/man" -type f -exec gzip -9n {} +
echo "$version-$revision"
