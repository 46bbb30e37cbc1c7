#!/usr/bin/env bash
# Drives the web page of a daemon in a real headless Chromium of Debian. Chromium is fetched into the cache with all that
# it needs, and runs there in a root of its own; nothing is installed. Screenshots are left in target/page.
#
#   scripts/page.sh [SLUICE]
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
SLUICE=${1:-${SLUICE:-$HERE/../target/release/sluice}}

fetch() {
  say "fetching Chromium (Debian trixie) into the cache, about 180 MiB"
  apt_private
  apt_closure trixie chromium-headless-shell fonts-dejavu-core | apt_unpack "$1/root"
  mkdir -p "$1"/root/{proc,dev,tmp}
}

folder=$SLUICE_CACHE/chromium-$(content_hash "$HERE/lib.sh" "$HERE/page.sh")
if [ ! -d "$folder" ] && [ -z "$(debian_mirror 2>/dev/null)" ]; then
  say "skipped: apt knows no Debian mirror to fetch Chromium from"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
tools=$(built_once "$(basename "$folder")" fetch)
exec timeout 600 python3 "$HERE/../tests/page/test_page.py" "$SLUICE" "$tools/root"
