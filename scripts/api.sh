#!/usr/bin/env bash
# Checks the OpenAPI document with an independent validator, and every route with a client made out of the document.
# The validator is installed into the cache, of the versions below; nothing else is touched.
#
#   scripts/api.sh [SLUICE]
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
SLUICE=${1:-${SLUICE:-$HERE/../target/release/sluice}}

install() {
  python3 -m venv "$1/venv" || die "python3 has no venv; install the package python3-venv"
  timeout 300 "$1/venv/bin/pip" -q --disable-pip-version-check install --only-binary :all: \
    openapi-spec-validator==0.9.0 || die "the validator cannot be installed from PyPI; run the same command again"
}

tools=$(built_once "openapi-$(content_hash "$HERE/api.sh")" install)
# By its path: the folder was renamed since its scripts were written.
exec timeout 300 "$tools/venv/bin/python3" "$HERE/../tests/api/check.py" "$SLUICE"
