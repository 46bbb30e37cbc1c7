#!/usr/bin/env python3
"""Draws changes of the code from those that cargo-mutants makes, tests each, and prints a table. mutants.sh calls it.

One build contains all changes (mutants_tree.py), and each is tested by the tests that reach it (mutants_tests.py), in stages:

  1. the tests of its crate, without those of the whole daemon
  2. the tests of other crates, without those of the whole daemon
  3. the unit tests of the daemon
  4. the tests of the whole daemon

The first failure ends them. With --under the first stage is the only one, and with --by the
second, too. Changes that one build cannot contain are built one by one, in the end.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

from mutants_tests import WORKERS, Binary, Tests
from mutants_tree import Tree, original

DAEMON = "sluice"
DAEMON_TESTS = "process"
# Code of tests, of fuzz targets and of the benchmark, which no test has to notice.
EXCLUDED_PACKAGES = {"sluice-sim", "sluice-bench"}
EXCLUDED_FILES = ("/fuzz.rs", "/bench/", "/test_device.rs", "/rig.rs", "/ebpf/src/edges.rs", "/drives/script.rs")
CRATE, DEPENDENTS, UNITS, WHOLE = STAGES = ("crate", "dependents", "daemon's units", "whole daemon")
NOT_NOTICED, NOT_BUILT = "NOT NOTICED", "does not build"
# Tests that take no longer come first.
QUICK_S = 1
SWITCH_SOURCE = pathlib.Path(__file__).with_name("mutants_switch.rs")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="cargo-mutants")
    parser.add_argument("--tree", type=pathlib.Path, required=True, help="a clean checkout, changed and put back")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a folder for what is known already")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--profile", default="mutants")
    parser.add_argument("--nice", type=int, default=15)
    parser.add_argument("--skip", default="", help="parts of names of tests that are left out")
    parser.add_argument("--under", default="", help="folders or files whose changes are all tested, by their crates alone")
    parser.add_argument("--by", default="", help="other packages whose tests are run, too, with --under")
    parser.add_argument("--patience", type=int, default=40, help="seconds without the end of a test that are no end")
    parser.add_argument("mutants", nargs="*", help="names instead of a sample")
    return parser.parse_args()


class Build:
    """The checkout, and cargo in it."""

    def __init__(self, options):
        self.tree, self.profile, self.program, self.work = options.tree, options.profile, options.program, options.work
        self.nice, self.packages = ["nice", "-n", str(options.nice - 5)], ["--workspace"]
        self.work.mkdir(parents=True, exist_ok=True)

    def output(self, *words):
        return subprocess.run(words, cwd=self.tree, check=True, capture_output=True, text=True).stdout

    def changes(self):
        """All changes that are drawn from, in an order that does not depend on the machine."""
        kept = self.work / "changes.json"
        if not kept.exists():
            kept.write_text(self.output(self.program, "mutants", "--list", "--json", "--workspace"))
        listed = json.loads(kept.read_text())
        drawn_from = [it for it in listed if it["package"] not in EXCLUDED_PACKAGES
                      and not any(part in it["file"] for part in EXCLUDED_FILES)]
        return sorted(drawn_from, key=lambda it: it["name"])

    def only(self, packages):
        """Leaves all other crates' tests out of what is built."""
        self.packages = [word for package in sorted(packages) for word in ("--package", package)]

    def make_switch(self):
        """Compiles the switch, and a wrapper of rustc that gives it to the crates of the workspace."""
        library, wrapper = self.work / "libmutants_switch.rlib", self.work / "rustc"
        subprocess.run(["rustc", "--edition", "2024", "--crate-type", "rlib", "--crate-name", "mutants_switch", "-C",
                        "opt-level=2", "-C", "codegen-units=1", "-o", library, SWITCH_SOURCE], check=True,
                       env={**os.environ, "RUSTC_BOOTSTRAP": "1"})
        # Other shells drop variables such as CARGO_BIN_EXE_sluice-bench, whose name has a hyphen.
        wrapper.write_text(f'#!/usr/bin/env bash\nexec "$@" --cap-lints allow -L "dependency={self.work}" '
                           f'--extern "mutants_switch={library}"\n')
        wrapper.chmod(0o755)

    def cargo(self, *words):
        """Messages of cargo for the crates that are built, and whether it succeeded."""
        command = [*self.nice, "cargo", *words, *self.packages, "--profile", self.profile, "--message-format", "json"]
        child = subprocess.run(command, cwd=self.tree, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "RUSTC_WORKSPACE_WRAPPER": str(self.work / "rustc")})
        if child.returncode and not child.stdout:
            sys.exit(f"error: cargo failed:\n{child.stderr[-4000:]}")
        return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")], child.returncode == 0

    def errors(self, messages):
        found = []
        for it in messages:
            message = it.get("message", {})
            if it["reason"] != "compiler-message" or message["level"] != "error":
                continue
            places, spans = [], [*message["spans"], *(span for child in message["children"] for span in child["spans"])]
            while spans:
                span = spans.pop()
                places.append((span["file_name"], span["line_start"], span["is_primary"]))
                if span.get("expansion"):
                    spans.append(span["expansion"]["span"])
            found.append((message["message"], places))
        return found

    def make(self, tree):
        """Builds the tests with all changes of the tree that compile; returns the programs."""
        while True:
            tree.write()
            messages, good = self.cargo("test", "--no-run", "--no-fail-fast")
            if good:
                return self.binaries(messages)
            errors = self.errors(messages)
            dropped = tree.drop(errors)
            print(f"{dropped} changes left out of the build", file=sys.stderr, flush=True)
            if not dropped:
                sys.exit("error: the tree does not build:\n" + "\n".join(f"{text} {places}" for text, places in errors))

    def binaries(self, messages):
        found = []
        for it in messages:
            if it["reason"] == "compiler-artifact" and it["profile"]["test"] and it["executable"]:
                folder = pathlib.Path(it["manifest_path"]).parent
                target = it["target"]
                name = "lib" if "lib" in target["kind"] else target["name"]
                package = next(line for line in (folder / "Cargo.toml").read_text().splitlines() if line.startswith("name"))
                found.append(Binary(package.split('"')[1], name, it["executable"], folder))
        return found


def stage_of(binary, package):
    if binary.package == DAEMON and binary.target == DAEMON_TESTS:
        return WHOLE
    if binary.package == package:
        return CRATE
    return UNITS if binary.package == DAEMON else DEPENDENTS


class Report:
    """The table, and a file of the results, so that a run can go on where another has ended."""

    def __init__(self, path):
        self.path, self.results = path, {}
        if path.exists():
            for line in path.read_text().splitlines():
                it = json.loads(line)
                self.results[it["change"], it["upto"]] = it

    def known(self, change, upto):
        return self.results.get((change["name"], upto))

    def add(self, change, upto, stage, test=""):
        it = {"change": change["name"], "upto": upto, "stage": stage, "test": test}
        self.results[change["name"], upto] = it
        with self.path.open("a") as file:
            file.write(json.dumps(it) + "\n")
        return it

    def show(self, change, it):
        name = change["name"].replace("|", "\\|")
        test = f"`{it['test']}`" if it["test"] else ""
        print(f"| `{name}` | {it['stage']} | {test} |", flush=True)


def judge(tests, change, place, stages):
    """The first of these stages that notices the change, and the test; or none."""
    package = change["package"]
    for stage in stages:
        found = tests.reaching(place, tests.keys(package, stage))
        for is_slow in (False, True):
            # Unit tests come first, since they are the quickest.
            for key in sorted(found, key=lambda key: (not key.endswith("/lib"), key)):
                some = [it for it in found[key] if (it["seconds"] > QUICK_S) == is_slow]
                test = tests.notices(key, some, change["number"]) if some else None
                if test:
                    return stage, test
    return None


def draw(options, build):
    changes = build.changes()
    if options.mutants:
        drawn = [it for it in changes if it["name"] in options.mutants]
        missing = set(options.mutants) - {it["name"] for it in drawn}
        if missing:
            sys.exit(f"error: there is no such change: {', '.join(sorted(missing))}")
    elif options.under:
        drawn = [it for it in changes if it["file"].startswith(tuple(options.under.split()))]
        if not drawn:
            sys.exit(f"error: there is no change under {options.under}")
    else:
        drawn = random.Random(options.seed).sample(changes, min(options.sample, len(changes)))
    if options.under:
        build.only({it["package"] for it in drawn} | set(options.by.split()))
    for number, change in enumerate(drawn, 1):
        change["number"] = number
    origin = f"all under {options.under}" if options.under else f"seed {options.seed}"
    print(f"{len(drawn)} of {len(changes)} changes, {origin}\n", flush=True)
    return drawn


def tests_of(options, build, binaries, places):
    work = build.work
    return Tests(binaries, stage_of, work / "tests.jsonl", work / "runs", places, options.nice, options.skip.split(),
                 options.patience)


def test_together(options, build, tree, report, changes, stages):
    """Tests all changes of the one build; returns those that need another."""
    binaries = build.make(tree)
    drawn = {change["number"]: change for change in changes}
    for number in tree.not_built:
        change = drawn[number]
        report.show(change, report.known(change, stages[-1]) or report.add(change, stages[-1], NOT_BUILT))
    tests = tests_of(options, build, binaries, len(changes) + 1)
    places = tree.places()

    def through(stage, numbers):
        """Reports those that the stage notices, and returns the others."""
        def one(number):
            change = drawn[number]
            return report.known(change, stage) or report.add(
                change, stage, *(judge(tests, change, places[number], [stage]) or (NOT_NOTICED,)))

        left = []
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            for number, it in zip(numbers, pool.map(one, numbers)):
                if it["stage"] == NOT_NOTICED and stage != stages[-1]:
                    left.append(number)
                else:
                    report.show(drawn[number], it)
        return left

    left = []
    for package in sorted({drawn[number]["package"] for number in places}):
        tests.measure(tests.keys(package, CRATE))
        left += through(CRATE, sorted(number for number in places if drawn[number]["package"] == package))
    for stage in stages[1:]:
        for number in left:
            tests.measure(tests.keys(drawn[number]["package"], stage))
        left = through(stage, left)
    return tree.apart()


def test_alone(options, build, report, change, stages):
    """Builds the tree with one change, and tests it by all tests of the build."""
    upto = stages[-1]
    it = report.known(change, upto)
    if not it:
        path = build.tree / change["file"]
        text = original(build.tree, change["file"])
        at, behind = change["at"]
        try:
            path.write_text(text[:at] + change["replacement"] + text[behind:])
            messages, good = build.cargo("test", "--no-run")
            if not good:
                it = report.add(change, upto, NOT_BUILT)
            else:
                tests = tests_of(options, build, build.binaries(messages), 0)
                found = judge(tests, {**change, "number": 0}, None, stages)
                it = report.add(change, upto, *(found or (NOT_NOTICED,)))
        finally:
            path.write_text(text)
    report.show(change, it)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    build = Build(options)
    started = build.work / "started"
    if build.output("git", "status", "--porcelain", "--untracked-files=no") and not started.exists():
        sys.exit(f"error: {options.tree} has changes that are not committed; commit them, or name another TREE")
    started.touch()
    drawn = draw(options, build)
    stages = STAGES[:2 if options.by else 1] if options.under else STAGES
    build.make_switch()
    report = Report(build.work / "results.jsonl")
    print("| change | noticed by | test |\n|---|---|---|", flush=True)
    apart = test_together(options, build, Tree(build.tree, drawn, build.work / "not-built.json"), report, drawn,
                          stages)
    # Until here the tree stays as it is if this is ended, so that the next run need not build it again.
    put_back = ["git", "checkout", "--quiet", "--", "."]
    subprocess.run(put_back, cwd=build.tree, check=True)
    for change in apart:
        test_alone(options, build, report, change, stages)
    started.unlink()
    ends = [it["stage"] for (_, upto), it in report.results.items() if upto == stages[-1] or it["stage"] != NOT_NOTICED]
    print(f"\n{len(drawn) - ends.count(NOT_BUILT)} changes built; {ends.count(NOT_NOTICED)} not noticed")


if __name__ == "__main__":
    main()
