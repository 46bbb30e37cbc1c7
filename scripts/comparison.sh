#!/usr/bin/env bash
# Compares Sluice's encrypt with the kernel's dm-crypt, and its replicate with dm-mirror, in one guest
# (tests/guest/comparison.py says how), and prints the tables that docs/internals/performance.md has. CI makes one short round of it.
#   scripts/comparison.sh [--rounds 5] [--seconds 0.5] [--kernel 6.12]      minutes on a quiet machine
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/.."
PATH=$HOME/.cargo/bin:$PATH
cargo build --profile dist --bin sluice
SLUICE=$PWD/target/dist/sluice exec python3 tests/guest/comparison.py "$@"
