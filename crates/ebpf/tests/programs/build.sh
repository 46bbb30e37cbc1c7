#!/usr/bin/env bash
# Rebuilds the objects that the tests load, from the sources beside them. Needs clang.
# With a folder as argument the objects go there, and those here stay.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-.}
for source in *.c; do
  clang -target bpf -O2 -g -mcpu=v3 -Wall -Werror -fdebug-prefix-map="$PWD"=. \
    -fdebug-compilation-dir=. -c "$source" -o "$out/${source%.c}.o"
done
