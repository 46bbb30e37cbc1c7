#!/usr/bin/env bash
# Changes the code at random places, one at a time, and reports the changes that no test notices. See docs/internals/mutants.md.
#   SEED=1 SAMPLE=40 scripts/mutants.sh [MUTANT...]
# A MUTANT is a line of an earlier report; without one a sample is drawn. TREE is a clean checkout that is changed and put
# back; without it a worktree of HEAD in the cache folder is used. PROFILE is the profile of cargo, SKIP has names of
# tests that are left out.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
PATH=$HOME/.cargo/bin:$PATH
VERSION=27.1.0

install() {
  say "installing cargo-mutants $VERSION into the cache folder"
  CARGO_TARGET_DIR=$1/build cargo install --quiet --locked --root "$1" --version "$VERSION" cargo-mutants >&2 ||
    die "cargo-mutants cannot be installed; run the same command again"
  rm -rf "$1/build"
}

tools=${MUTANTS_TOOLS:-$(built_once "mutants-$(printf %s "$VERSION" | sha256sum | cut -c1-12)" install)}
if [ -z "${TREE:-}" ]; then
  TREE=$SLUICE_CACHE/mutants-tree
  commit=$(git -C "$HERE" rev-parse HEAD)
  git -C "$HERE" worktree prune
  if [ -d "$TREE" ]; then git -C "$TREE" checkout --quiet --force --detach "$commit"
  else git -C "$HERE" worktree add --quiet --detach "$TREE" "$commit"; fi
fi
exec python3 "$HERE/mutants.py" --program "$tools/bin/cargo-mutants" --tree "$TREE" \
  --seed "${SEED:-1}" --sample "${SAMPLE:-40}" --profile "${PROFILE:-mutants}" --skip "${SKIP:-}" -- "$@"
