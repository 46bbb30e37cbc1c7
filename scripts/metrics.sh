#!/usr/bin/env bash
# Checks /metrics with promtool, has a Prometheus of Debian scrape a daemon over TCP, and checks the alert rules and the
# dashboard in contrib. Prometheus is fetched into the cache; nothing is installed.
#
#   scripts/metrics.sh [SLUICE]
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
SLUICE=${1:-${SLUICE:-$HERE/../target/release/sluice}}

fetch() {
  say "fetching Prometheus (Debian trixie) into the cache, about 50 MiB"
  apt_private
  apt_closure trixie prometheus | grep -E '^(prometheus|promtool)=' | apt_unpack "$1/root"
}

folder=$SLUICE_CACHE/prometheus-$(content_hash "$HERE/lib.sh" "$HERE/metrics.sh")
if [ ! -d "$folder" ] && [ -z "$(debian_mirror 2>/dev/null)" ]; then
  say "skipped: apt knows no Debian mirror to fetch Prometheus from"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
tools=$(built_once "$(basename "$folder")" fetch)
exec timeout 300 python3 "$HERE/../tests/metrics/check.py" "$SLUICE" "$tools/root/usr/bin"
