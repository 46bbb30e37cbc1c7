#!/bin/sh
# The compiler, with the coverage that libFuzzer steers by for our own crates. What they depend on is
# taken as it was compiled for the daemon: it is not what is fuzzed, and compiling it takes longest.
rustc=$1; shift
case " $* " in
  *" --crate-name build_script_build "*|*"proc-macro"*) exec "$rustc" "$@" ;;
  *" --crate-name sluice"*|*" --crate-name fuzz_"*)
    exec "$rustc" "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
      -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
      -Cllvm-args=-sanitizer-coverage-trace-compares ;;
esac
exec "$rustc" "$@"
