#!/usr/bin/env bash
# All that CI runs, stage by stage with times; goes on after a failed stage, so that one run shows all.
# What failed and why is said once more at the end. The last line counts single checks: Rust tests, guest checks, and
# each other stage as one.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
cd "$HERE/.."
PATH=$HOME/.cargo/bin:$PATH
export CARGO_TERM_COLOR=never
# A checkout that is built once gains nothing from incremental compilation.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
logs=$(mktemp -d); trap 'rm -rf "$logs"' EXIT
passed=0 failed=0 began=$SECONDS times=() broken=()

# stage NAME COMMAND... : runs it with its output shown and kept in $log; its exit code is in $code
stage() {
  local name=$1 start=$SECONDS; shift
  log=$logs/${name// /-}
  printf '\n=== %s: %s\n' "$name" "$*"
  code=0; "$@" 2>&1 | tee "$log" || code=$?
  [ $code = 0 ] || broken+=("$name")
  times+=("$(printf '%5d s  %s%s' $((SECONDS - start)) "$name" "$([ $code = 0 ] || echo '  FAILED')")")
}

# what a stage that is one check counts for
as_one() { if [ $code = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }

# counts LINES WORD : the sum of the numbers before WORD in those lines of the log
counts() { grep -E "$1" "$log" | grep -oE "[0-9]+ $2" | awk '{n += $1} END {print n + 0}' || true; }

# what a stage with summaries counts for; one that broke before any summary still is a failure
as_counted() {
  local good bad
  good=$(counts "$1" passed) bad=$(counts "$1" failed)
  [ $code = 0 ] || [ "$bad" -gt 0 ] || bad=1
  passed=$((passed + good)) failed=$((failed + bad))
}

stage setup scripts/setup.sh; as_one
stage format cargo fmt --all --check; as_one
stage "format of fuzz targets" cargo fmt --manifest-path fuzz/Cargo.toml --check; as_one
stage dependencies scripts/check-dependencies.py; as_one
stage size scripts/count.py; as_one
stage words scripts/words.py; as_one
if cargo clippy --version >/dev/null 2>&1; then
  stage clippy cargo clippy --release --workspace --all-targets -- -D warnings; as_one
fi
stage documentation env RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps; as_one
# With what the tests need: without, their dependencies' other features would build most things twice.
stage build cargo test --release --workspace --no-run; as_one
stage instructions scripts/instructions.py; as_one
stage "rust tests" cargo test --release --workspace --no-fail-fast; as_counted '^test result:'
stage conformance scripts/conformance.py "$logs/rust-tests"; as_one
if [ -x scripts/fuzz.sh ]; then stage fuzz scripts/fuzz.sh; as_one; fi
stage api scripts/api.sh; as_counted '^[0-9]+ passed, [0-9]+ failed$'
stage metrics scripts/metrics.sh; as_counted '^[0-9]+ passed, [0-9]+ failed'
stage page scripts/page.sh; as_counted '^[0-9]+ passed, [0-9]+ failed'
stage "guest tests" python3 tests/guest/all.py; as_counted '^[0-9]+ passed, [0-9]+ failed$'

# reasons STAGE : the lines of its log that say what failed; of one that says nothing the last
reasons() {
  local log=$logs/${1// /-} said='^test .* FAILED$|panicked at|^(error|warning)(\[|:)|^  FAIL |FAILED after|^(reason|input|again): '
  { grep -E -A 1 -e "$said" "$log" || tail -n 10 "$log"; } |
    grep -v -e '^--$' -e '^note: ' -e ' ok$' | head -n 60 | cut -c 1-3200 | sed 's/^/    /'
}

for name in "${broken[@]}"; do printf '\n=== %s FAILED\n' "$name"; reasons "$name" || true; done
printf '\n=== %d s in all\n' $((SECONDS - began))
printf '%s\n' "${times[@]}"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
