#!/usr/bin/env bash
# Measures the standard set and writes it between the markers of docs/internals/performance.md.
#
#   scripts/performance.sh            half an hour on a quiet machine with two processors or more
#   scripts/performance.sh --quick    a few minutes: fewer and shorter runs, to see that all of it works
#   scripts/performance.sh --print    writes to standard output instead
#   scripts/performance.sh --line-ns=300..500
#                                     only while a cache line's round trip between the processors takes so
#                                     many nanoseconds; each cell waits a minute for that
#
# FILE=PATH names a file or block device to read from as well; nothing is written to it.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/.."
PATH=$HOME/.cargo/bin:$PATH
. scripts/lib.sh

page=docs/internals/performance.md
begin='<!-- measured: scripts/performance.sh writes from here -->'
end='<!-- measured: to here -->'

time=0.1 runs=25 idle=30 first=20 print= place=()
for word in "$@"; do
  case $word in
    --quick) time=0.05 runs=5 idle=5 first=3 ;;
    --print) print=1 ;;
    --line-ns=*) place=(--line-ns "${word#*=}" --wait 60) ;;
    *) die "what is $word? See the head of this script" ;;
  esac
done

cargo build --profile dist --bin sluice --bin sluice-bench
sluice=$PWD/target/dist/sluice

busy=$(cut -d ' ' -f 1 /proc/loadavg)
awk -v busy="$busy" 'BEGIN { exit busy < 0.5 }' &&
  say "warning: the load of this machine is $busy; figures of a busy machine say little"

# bench TITLE ARGUMENT... : one section, the command beside what it printed
bench() {
  local title=$1 out; shift
  say; say "$title"
  # One place that never came is no reason to lose what was measured before.
  out=$("$sluice" bench "$@") || { [ ${#place[@]} -gt 0 ] || exit 1; out="not measured"; }
  # The machine is named once, above all tables; what it warns of stays.
  printf '### %s\n\n`sluice bench%s`\n\n```text\n%s\n```\n\n' "$title" "${*:+ $*}" \
    "$(grep -v ', Linux ' <<< "$out" | sed '/./,$!d')"
}

# The machine's own line, from the shortest measurement there is.
machine() { "$sluice" bench --queue-depth 1 --time 0.05 --runs 1 2>/dev/null | grep ', Linux ' | sed 's/\(Linux [0-9]*\.[0-9]*\).*/\1/'; }

measure() {
  local rated=(--time "$time" --runs "$runs") few=(--time "$time" --runs "$runs" "${place[@]}")
  printf 'Measured on %s, on %s, commit %s.\n\n' "$(machine)" "$(date -u +%F)" "$(git rev-parse --short HEAD)"
  bench "Nothing behind the drive" "${few[@]}"
  bench "Nothing behind the drive, writes" "${few[@]}" --mix write,50%
  bench "The doorbells that QEMU uses" "${few[@]}" --doorbells trapped
  bench "512 MiB of memory, through Sluice and directly" "${few[@]}" --target memory --mix read,write --direct
  bench "The same in large pieces" "${few[@]}" --target memory --block-size 128KiB --queue-depth 32 \
    --mix read,write --direct
  if [ -n "${FILE:-}" ]; then
    # By its name alone: where it is says nothing to anyone else.
    (cd "$(dirname "$FILE")" && bench "A file" "${few[@]}" --target "file:$(basename "$FILE")" --direct)
  fi
  bench "Many drives on one reactor" "${few[@]}" --drives 1,8,32,128 --queue-depth 8
  bench "10,000 commands a second" "${rated[@]}" --rate --queue-depth 32 --target null,memory
  bench "The first command after a second" --first-command "$first" --queue-depth 1
  bench "The same with the doorbells that QEMU uses" --first-command "$first" --queue-depth 1 --doorbells trapped
  bench "A hundred idle drives" idle --time "$idle"
  bench "The same with doorbells in shared memory" idle --time "$idle" --doorbells mapped
  bench "Many clients on one daemon" clients --time "$first"
  bench "The papers' cells" --time "$time" --runs 5 "${place[@]}" --grid paper
  bench "One call of a classifier" classifier
  bench "A function that does nothing, in the daemon and in a process" "${few[@]}" \
    --target null,pass@daemon:null,pass@process:null --queue-depth 1,32 --direct
  bench "Encryption, beside the bare cipher" cipher
  bench "NVMe/TCP on loopback" tcp --time "$time" --runs "$runs"
  bench "Instructions" instructions
}

# Cuts what was measured into the page; the rest of it stays as somebody wrote it.
write_page() {
  grep -qxF "$begin" "$page" && grep -qxF "$end" "$page" || die "$page has lost its markers"
  awk -v begin="$begin" -v end="$end" -v measured="$1" '
    $0 == end { skip = 0 }
    !skip { print }
    $0 == begin { skip = 1; print ""; while ((getline line < measured) > 0) print line }
  ' "$page" > "$page.new"
  mv "$page.new" "$page"
}

measured=$(mktemp); trap 'rm -f "$measured" "$page.new"' EXIT
measure > "$measured"
if [ -n "$print" ]; then cat "$measured"; else write_page "$measured"; fi
