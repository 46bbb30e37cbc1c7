#!/usr/bin/env bash
# One command from a fresh Debian machine to a stock Linux guest using a drive served by Sluice.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/.."
PATH=$HOME/.cargo/bin:$PATH
. scripts/lib.sh
if [ -t 2 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold= plain=; fi
step() { say; say "$bold$*$plain"; }

step "1. What this machine needs"
scripts/setup.sh
say "  QEMU:  $("$(scripts/get-qemu.sh)" --version | head -n 1)"
say "  guest: Linux $(cat "$(tests/guest/mkguest.sh 6.12)/release"), unmodified Debian"
tests/guest/mkguest.sh tools > /dev/null

step "2. Building Sluice (the first time takes a few minutes)"
cargo build --release --bin sluice

exec python3 tests/guest/demo.py
