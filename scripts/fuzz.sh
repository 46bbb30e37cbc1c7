#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while: the committed inputs first, then what the fuzzer makes
# of them. Ends with an error if an input fails; it is kept and shown, at the end.
#   scripts/fuzz.sh [SECONDS_PER_TARGET [TARGET...]]        two at a time, as CI does
#   scripts/fuzz.sh long [MINUTES_PER_TARGET [TARGET...]]   by hand: one at a time, and inputs that reach
#                                                           code no committed one does join them
# See docs/internals/fuzzing.md.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/../fuzz"
PATH=$HOME/.cargo/bin:$PATH
usage() { sed -n '4,6s/^#  *//p' "$HERE/fuzz.sh" >&2; exit 2; }
LONG='' time=15 unit=1
if [ "${1:-}" = long ]; then LONG=yes unit=60; shift; fi
time=${1:-$time}
[[ $time =~ ^[0-9]+$ ]] || usage
SECONDS_EACH=$((time * unit))
shift $(($# > 0))
TARGETS=("$@")
[ ${#TARGETS[@]} -gt 0 ] || mapfile -t TARGETS < <(cd bin && ls -- *.rs | sed 's/\.rs$//')
for target in "${TARGETS[@]}"; do
  [ -e "bin/$target.rs" ] || { echo "there is no target $target" >&2; exit 2; }
done

CARGO_TERM_COLOR=never cargo build --release --locked --quiet
PROGRAMS=${CARGO_TARGET_DIR:-../target}/release
# In memory where possible: each input of some targets makes and removes files.
parent=/dev/shm; [ -w "$parent" ] || parent=${TMPDIR:-/tmp}
scratch=$(mktemp -d "$parent/sluice-fuzz.XXXXXX"); trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
mkdir -p artifacts

# run TARGET : the fuzzer itself, over the committed inputs and a folder for new ones
run() {
  mkdir "$scratch/$1" && mkdir -p "corpus/$1"
  local words=()
  [ ! -e "dictionaries/$1" ] || words=(-dict="dictionaries/$1")
  # Coverage of the inputs shows once they have all been run, which may take longer than the time given.
  ${LONG:+nice -n 19} "$PROGRAMS/fuzz_$1" -max_total_time="$SECONDS_EACH" -print_final_stats=1 -timeout=60 \
    -report_slow_units=60 "${words[@]}" -artifact_prefix="artifacts/$1-" "$scratch/$1" "corpus/$1" > "$scratch/$1.log" 2>&1
}

# keep TARGET : few and small inputs that reach code which no committed one does join those
keep() {
  local before; before=$(ls "corpus/$1" | wc -l)
  nice -n 19 "$PROGRAMS/fuzz_$1" -set_cover_merge=1 -use_counters=0 "corpus/$1" "$scratch/$1" \
    > "$scratch/$1.merge" 2>&1 ||
    { echo "$1: the new inputs cannot be merged" >&2; tail -n 5 "$scratch/$1.merge" >&2; return; }
  echo "$1: $(($(ls "corpus/$1" | wc -l) - before)) new inputs in fuzz/corpus/$1"
}

passed() { [ "$(cat "$scratch/$1.code")" = 0 ]; }

# report TARGET : what came of it, in a line; of a failure all that is needed to look into it
report() {
  local log=$scratch/$1.log ran before after failed
  ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  before=$(sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p' "$log")
  after=$(sed -n 's/^#[0-9].* cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  if passed "$1"; then
    printf '%-12s %9s executions, coverage %s, %s of it new\n' "$1" "$ran" "$after" "$((after - before))"
    return
  fi
  failed=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  grep -m 1 -A 12 -E 'panicked at|ERROR: libFuzzer' "$log" || tail -n 20 "$log"
  [ -z "$failed" ] || od -A x -N 1024 -t x1z "$failed"
  # What is needed most once more, a line each.
  printf '%-12s FAILED after %s executions, with exit code %s\n' "$1" "${ran:-no}" "$(cat "$scratch/$1.code")"
  sed -n '/panicked at\|ERROR: libFuzzer/{N;s/\n/ /;s/^/reason: /p;q}' "$log"
  [ -z "$failed" ] || { echo "input: $(base64 -w 0 "$failed" | head -c 3000)"; echo "again: fuzz_$1 fuzz/$failed"; }
}

at_once=$([ "$LONG" ] && echo 1 || echo 2)
for target in "${TARGETS[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n || true; done
  (code=0; run "$target" || code=$?; echo $code > "$scratch/$target.code") &
done
wait || true
[ -z "$LONG" ] || for target in "${TARGETS[@]}"; do keep "$target"; done

good=() bad=()
for target in "${TARGETS[@]}"; do if passed "$target"; then good+=("$target"); else bad+=("$target"); fi; done
for target in "${good[@]}" "${bad[@]}"; do report "$target"; done
[ ${#bad[@]} = 0 ]
