#!/usr/bin/env bash
# Changes the code at random places and reports the changes that no test notices. See docs/internals/mutants.md.
#   SEED=1 SAMPLE=40 scripts/mutants.sh [MUTANT...]
#   UNDER="crates/redundancy/src crates/functions/src/services/store" scripts/mutants.sh [MUTANT...]
# A MUTANT is a line of an earlier report; without one a sample is drawn. With UNDER, all changes of these folders and files
# are tested, by the tests of their crates alone, and of the packages in BY. PATIENCE is how many seconds without the end of a test count as no end. TREE is a clean checkout that is changed and put
# back; without it a worktree of HEAD in the cache folder is used. PROFILE is the profile of cargo, SKIP has parts of names
# of tests that are left out. The same command goes on with a run that was ended.
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
OWN_TREE=$SLUICE_CACHE/mutants-tree
commit=$(git -C "${TREE:-$HERE}" rev-parse HEAD)
run=$(echo "$commit ${SEED:-1} ${SAMPLE:-40} ${PROFILE:-mutants} ${UNDER:-} ${BY:-}" "$@" | sha256sum | cut -c1-12)
work=$SLUICE_CACHE/mutants-runs/$run
if [ -z "${TREE:-}" ]; then
  git -C "$HERE" worktree prune
  if [ ! -d "$OWN_TREE" ]; then git -C "$HERE" worktree add --quiet --detach "$OWN_TREE" "$commit"
  # A run that was ended goes on with the tree that it has written.
  elif [ ! -e "$work/started" ]; then git -C "$OWN_TREE" checkout --quiet --force --detach "$commit"; fi
fi
exec python3 "$HERE/mutants.py" --program "$tools/bin/cargo-mutants" --tree "${TREE:-$OWN_TREE}" --work "$work" \
  --seed "${SEED:-1}" --sample "${SAMPLE:-40}" --profile "${PROFILE:-mutants}" --skip "${SKIP:-}" \
  --under "${UNDER:-}" --by "${BY:-}" --patience "${PATIENCE:-40}" -- "$@"
