#!/bin/sh
# The compiler, with the coverage that libFuzzer steers by for our own crates. Dependencies are taken as
# they were compiled for the daemon: they are not what is fuzzed, and compiling them takes longest. The
# targets themselves go without: they would be what the fuzzer explores.
rustc=$1; shift
case " $* " in
  *" --crate-name sluice_fuzz "*) ;;
  *" --crate-name sluice "*|*" --crate-name sluice_"*)
    exec "$rustc" "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
      -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
      -Cllvm-args=-sanitizer-coverage-trace-compares ;;
esac
exec "$rustc" "$@"
