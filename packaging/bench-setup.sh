#!/bin/sh
# Install the supervisors that benchmarks/peers measures, on Debian 12 as root; none of their services is started.
# usage: packaging/bench-setup.sh DIRECTORY
# runit, s6 and monit come from Debian; supervisor and circus go into DIRECTORY/venv, pm2 into DIRECTORY/npm, so that
# none of them shares anything with what the project itself is installed in.
set -eu
directory=${1:?usage: packaging/bench-setup.sh DIRECTORY}
mkdir -p "$directory"

packages=""
for pair in runsvdir:runit s6-svscan:s6 monit:monit npm:npm node:nodejs cc:gcc unshare:util-linux; do
    command -v "${pair%%:*}" >/dev/null || packages="$packages ${pair##*:}"
done
[ -x /lib/systemd/systemd ] || packages="$packages systemd"
[ -e /usr/lib/x86_64-linux-gnu/libc.a ] || [ -e /usr/lib/aarch64-linux-gnu/libc.a ] || packages="$packages libc6-dev"
if [ -n "$packages" ]; then
    [ "$(id -u)" = 0 ] || {
        echo "cannot install$packages: run as root" >&2
        exit 1
    }
    # Packages ask this before they start a service; 101 is "not allowed" (invoke-rc.d(8)).
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        trap 'rm -f $policy' EXIT
    fi
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o DPkg::Lock::Timeout=600 --no-install-recommends $packages
fi

[ -x "$directory/venv/bin/python" ] || python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check supervisor circus
[ -e "$directory/npm/node_modules/pm2/package.json" ] ||
    npm install --silent --no-audit --no-fund --prefix "$directory/npm" pm2
