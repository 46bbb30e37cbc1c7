#!/usr/bin/env bash
# Builds the packages of arm64, checks them, and boots a machine of arm64 with the daemon's, which uses it.
# usage: package-arm64.sh [--binaries DIR] [--tools DIR]     as deb.py has them
# The last line is "N passed, N failed".
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/package-lib.sh"
PATH=$HOME/.cargo/bin:$PATH:/usr/sbin
ROOT=$HERE/..

# Packages of arm64 that are unpacked, and not installed: nothing of them is executed here.
arm64_root() {
  say "unpacking a Debian for arm64"
  mmdebstrap --quiet --architectures=arm64 --variant=extract --include=busybox-static,nvme-cli,libc6,libgcc-s1,kmod,linux-image-cloud-arm64 \
    trixie "$1/root.tar" "deb [signed-by=$(debian_keyring)] $(debian_mirror) trixie main" >&2
}

# is_for_arm64 PROGRAM...
is_for_arm64() { local program; for program; do readelf -h "$program" | grep -q 'Machine: *AArch64' || { echo "$program"; return 1; }; done; }

work=$(mktemp -d "${TMPDIR:-/dev/shm}/sluice-package.XXXXXX"); trap 'rm -rf "$work"' EXIT
"$HERE/setup.sh" package arm64
"$HERE/deb.py" --arch arm64 "$@" --into "$work/deb"
check "lintian has nothing to report" no_errors "$work/deb"
dpkg-deb -x "$work"/deb/sluice_*.deb "$work/unpacked"
check "the programs are for arm64" is_for_arm64 "$work"/unpacked/usr/bin/*
also python3 "$ROOT/tests/package/arm64.py" "$(archive package-arm64 arm64_root)" "$work"/deb/sluice_*.deb
echo "$passed passed, $failed failed"
[ $failed = 0 ]
