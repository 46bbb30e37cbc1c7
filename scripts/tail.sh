#!/usr/bin/env bash
# Measures the slowest commands over NVMe/TCP, Sluice's controller beside the kernel's nvmet in one guest
# (tests/guest/tail.py says how), and prints the table that docs/internals/performance.md has.
#   scripts/tail.sh [--seconds 10] [--depths 1,32,256] [--kernel 6.12]      minutes on a quiet machine
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/.."
PATH=$HOME/.cargo/bin:$PATH
cargo build --profile dist --bin sluice --bin sluice-bench
SLUICE=$PWD/target/dist/sluice exec python3 tests/guest/tail.py "$@"
