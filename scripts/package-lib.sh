# Shared by the tests of packages. Source it; it runs nothing by itself. They set SUITE and work.
. "$HERE/lib.sh"
passed=0 failed=0

# check NAME COMMAND... : one check; a failure shows what the command printed
check() {
  local name=$1 text; shift
  if text=$("$@" 2>&1); then echo "  PASS $name"; passed=$((passed + 1))
  else echo "  FAIL $name"; sed 's/^/    | /' <<<"$text" | tail -n 30; failed=$((failed + 1)); fi
}

# archive NAME FUNCTION : the archive that the function makes
archive() { echo "$(built_once "$1-$(content_hash <(echo "${SUITE:-}"; declare -f "$2"))" "$2")/root.tar"; }

# also COMMAND... : a test whose last line has its counts
also() {
  local log more less; log=$(mktemp -p "$work")
  "$@" 2>&1 | tee "$log" || true
  read -r more less < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log" | tail -n 1) || true
  passed=$((passed + ${more:-0})) failed=$((failed + ${less:-1}))
}

no_errors() { lintian --fail-on error,warning --allow-root "$1"/*.deb; }
