#!/usr/bin/env python3
"""Draws changes of the code from those that cargo-mutants makes, tests each, and prints a table. mutants.sh calls it.

A change is tested in stages, and the first failure ends them:

  1. the tests of its crate, without those of the whole daemon
  2. the tests of the crates that depend on it, directly or not, without those of the whole daemon
  3. the unit tests of the daemon
  4. the tests of the whole daemon

The changes are taken in groups, and in a group crate by crate: a change that is taken back is built once more for all that
follow in its crate. The daemon is built last, for those alone that nothing before has noticed.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

DAEMON = "sluice"
DAEMON_TESTS = "process"
# Code of tests, of fuzz targets and of the benchmark, which no test has to notice.
EXCLUDED_PACKAGES = {"sluice-sim", "sluice-bench"}
EXCLUDED_FILES = ("/fuzz.rs", "/bench/", "/test_device.rs")
# The stages, in their order; the first ones are gone through for a group of changes before the next group begins.
CRATE, DEPENDENTS, UNITS, WHOLE = STAGES = ("crate", "dependents", "daemon's units", "whole daemon")
EARLY = (CRATE, DEPENDENTS)
GROUP = 25
# A test that takes longer than this many times its time without a change hangs.
SLOWER = 4
SLOWER_AND_S = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="cargo-mutants")
    parser.add_argument("--tree", type=pathlib.Path, required=True, help="a clean checkout, changed and put back")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--profile", default="mutants")
    parser.add_argument("--skip", default="", help="names of tests that are left out")
    parser.add_argument("mutants", nargs="*", help="names instead of a sample")
    return parser.parse_args()


def end_group(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


class Bench:
    """The tree, and its tests without a change."""

    def __init__(self, options):
        self.tree, self.profile, self.program = options.tree, options.profile, options.program
        self.skip = [word for name in options.skip.split() for word in ("--skip", name)]
        self.times = {}
        self.dependents = self.read_dependents()

    def output(self, *words):
        return subprocess.run(words, cwd=self.tree, check=True, capture_output=True, text=True).stdout

    def read_dependents(self):
        """For each crate those that depend on it, directly or not, the daemon last."""
        packages = json.loads(self.output("cargo", "metadata", "--no-deps", "--format-version", "1"))["packages"]
        names = {package["name"] for package in packages}
        needs = {package["name"]: {it["name"] for it in package["dependencies"]} & names for package in packages}
        found = {}
        for name in names:
            reached, new = set(), {name}
            while new:
                reached |= new
                new = {other for other in names if needs[other] & new} - reached
            found[name] = sorted(reached - {name}, key=lambda other: (other == DAEMON, other))
        return found

    def changes(self):
        """All changes that are drawn from, in an order that does not depend on the machine."""
        listed = json.loads(self.output(self.program, "mutants", "--list", "--json", "--diff", "--workspace"))
        kept = [it for it in listed if it["package"] not in EXCLUDED_PACKAGES
                and not any(part in it["file"] for part in EXCLUDED_FILES)]
        return sorted(kept, key=lambda it: it["name"])

    def stages(self, package):
        """Arguments of cargo for each stage that concerns the package, by name."""
        def of(names):
            return [word for name in names for word in ("-p", name)]
        others = self.dependents[package]
        units = ["--lib"] if package == DAEMON else []
        found = {CRATE: of([package]) + units}
        below = [name for name in others if name != DAEMON]
        if below:
            found[DEPENDENTS] = of(below)
        if DAEMON in others:
            found[UNITS] = of([DAEMON]) + ["--lib"]
        if DAEMON in others or package == DAEMON:
            found[WHOLE] = of([DAEMON]) + ["--test", DAEMON_TESTS]
        return found

    def cargo(self, words, limit_s=None, build_only=False):
        """Exit code, and the output; none for the code if it took too long."""
        tests = ["--no-run"] if build_only else ["--", *self.skip]
        command = ["cargo", "test", "--quiet", "--profile", self.profile, *words, *tests]
        child = subprocess.Popen(command, cwd=self.tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 errors="replace", start_new_session=True, env={**os.environ, "RUST_BACKTRACE": "0"})
        try:
            text, _ = child.communicate(timeout=limit_s)
            return child.returncode, text
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            # Also what the tests have started and left, and all of it when this program is ended.
            end_group(child)

    def time_of(self, words):
        """Seconds of these tests without a change. Ends the program if one fails."""
        key = tuple(words)
        if key not in self.times:
            self.cargo(words, build_only=True)
            began = time.monotonic()
            code, text = self.cargo(words)
            if code != 0:
                sys.exit(f"error: tests fail without any change ({' '.join(words)}); SKIP leaves some out:\n{text[-4000:]}")
            self.times[key] = time.monotonic() - began
        return self.times[key]

    def judge(self, change, stage):
        """The stage if it notices the change, or that this is not built, and the first test; or none."""
        words = self.stages(change["package"]).get(stage)
        if words is None:
            return None
        limit_s = self.time_of(words) * SLOWER + SLOWER_AND_S
        with Applied(self.tree, change):
            code, _ = self.cargo(words, build_only=True)
            if code != 0:
                return "does not build", ""
            code, text = self.cargo(words, limit_s)
        if code is None:
            return stage, "no end"
        return (stage, first_failure(text)) if code != 0 else None


class Applied:
    """A change while the block runs."""

    def __init__(self, tree, change):
        self.path, self.text = tree / change["file"], None
        _, _, hunks = change["diff"].split("\n", 2)
        self.patch = f"--- a/{change['file']}\n+++ b/{change['file']}\n{hunks}"
        self.tree = tree

    def __enter__(self):
        self.text = self.path.read_text()
        subprocess.run(["git", "apply", "-"], cwd=self.tree, input=self.patch, text=True, check=True)

    def __exit__(self, *_):
        # A new time of modification, so that cargo builds it again.
        self.path.write_text(self.text)
        # Inputs that failed are kept there, and would fail without the change, too.
        kept = ["--", "*proptest-regressions*"]
        subprocess.run(["git", "clean", "-fdq", *kept], cwd=self.tree, check=True)
        subprocess.run(["git", "checkout", "--quiet", *kept], cwd=self.tree)


def first_failure(text):
    lines = text.splitlines()
    for line in lines:
        if line.startswith("test ") and line.endswith("FAILED"):
            return line.split()[1]
    for line in lines:
        if line.startswith("thread '"):
            return line.split("'")[1]
        if line.endswith("--- FAILED"):
            return line.split()[0]
    return next((line for line in reversed(lines) if line.startswith("error")), "")[:80]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    bench = Bench(options)
    if bench.output("git", "status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"error: {options.tree} has changes that are not committed; commit them, or name another TREE")
    changes = bench.changes()
    if options.mutants:
        drawn = [it for it in changes if it["name"] in options.mutants]
        missing = set(options.mutants) - {it["name"] for it in drawn}
        if missing:
            sys.exit(f"error: there is no such change: {', '.join(sorted(missing))}")
    else:
        drawn = random.Random(options.seed).sample(changes, min(options.sample, len(changes)))
    print(f"{len(drawn)} of {len(changes)} changes, seed {options.seed}\n", flush=True)
    print("| change | noticed by | test |\n|---|---|---|", flush=True)
    counts = {}

    def report(change, stage, test):
        counts[stage] = counts.get(stage, 0) + 1
        name = change["name"].replace("|", "\\|")
        print(f"| `{name}` | {stage} | {f'`{test}`' if test else ''} |", flush=True)

    def unnoticed_by(stage, tested):
        left = []
        for change in sorted(tested, key=lambda it: it["package"]):
            found = bench.judge(change, stage)
            if found:
                report(change, *found)
            else:
                print(f"not noticed by {stage}: {change['name']}", file=sys.stderr, flush=True)
                left.append(change)
        return left

    left = []
    for start in range(0, len(drawn), GROUP):
        group = drawn[start:start + GROUP]
        for stage in EARLY:
            group = unnoticed_by(stage, group)
        left += group
    for stage in STAGES[len(EARLY):]:
        left = unnoticed_by(stage, left)
    for change in left:
        report(change, "NOT NOTICED", "")
    built = len(drawn) - counts.get("does not build", 0)
    unnoticed = counts.get("NOT NOTICED", 0)
    print(f"\n{built} changes built; {unnoticed} not noticed")


if __name__ == "__main__":
    main()
