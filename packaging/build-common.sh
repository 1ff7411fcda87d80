# Sourced by build-deb.sh and build-rpm.sh: goes to the source tree, and sets
#   out    the absolute path of the output directory, which is made    work   a directory of this build, removed at its end
#   stage  in it, where packaging/stage.sh lays the package out
# shellcheck shell=sh
cd "$(dirname "$0")/.."
out=${1:-dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage
