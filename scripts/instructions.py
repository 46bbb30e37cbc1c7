#!/usr/bin/env python3
"""Compares the instructions of a command with scripts/instructions-baseline.txt.

  instructions.py            counts, and fails if a row has over 1 % more than its baseline
  instructions.py --write    replaces the baseline of this machine and build

The counted program is target/release/sluice-bench, as `cargo test --release --workspace` builds it: with assertions.
BENCH=PATH names another. Rows over memory that both sides have are compared, since these are the same in every run.

The numbers depend on the compiler, on the C library and the vector units that copy data, and on incremental compilation.
The baseline has a section for each such combination. Without a section of this one, rows that move no data are compared
with the first section, and may have 20 % more. A commit that costs more on purpose changes the baseline.
"""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = ROOT / "scripts/instructions-baseline.txt"
BENCH = os.environ.get("BENCH") or ROOT / "target/release/sluice-bench"
COLUMNS = ("side", "target", "function", "classifier", "operation", "batch")
# Features by which the C library chooses how to copy.
COPIES = ("avx2", "avx512f", "avx512vl", "erms", "fsrm")

HEAD = """# Instructions of one command, written by scripts/instructions.py --write.
# %s; instructions
""" % ", ".join(COLUMNS)


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def conditions():
    """Returns the properties of this machine and build that the numbers depend on."""
    compiler = " ".join(output("rustc", "--version").split()[:2])
    library = output("getconf", "GNU_LIBC_VERSION").strip()
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    copies = " ".join(flag for flag in COPIES if flag in flags)
    incremental = "at once" if os.environ.get("CARGO_INCREMENTAL") == "0" else "incremental"
    return ", ".join([compiler, library, copies or "no vector units", incremental])


def counted():
    """Counts. Returns the instructions by row."""
    report = json.loads(output(str(BENCH), "instructions", "--transport", "pcie", "-o", "json"))
    return {" ".join(str(row[column]) for column in COLUMNS): row["instructions"] for row in report["counts"]}


def read():
    """Returns the sections of the baseline: instructions by row, by conditions."""
    sections, section = {}, None
    for line in BASELINE.read_text().splitlines() if BASELINE.exists() else []:
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            row, number = line.rsplit(" ", 1)
            section[row] = float(number)
    return sections


def write(sections):
    text = HEAD
    for name, rows in sections.items():
        text += "\n[%s]\n" % name + "".join("%s %.1f\n" % row for row in rows.items())
    BASELINE.write_text(text)


def compared(here, before, allowed):
    """Returns the findings: rows with too many instructions, rows that only one side has."""
    found = []
    for row, number in before.items():
        if row not in here:
            found.append("%s: the baseline has it, and nothing counts it" % row)
        elif here[row] > number * allowed:
            more = 100 * (here[row] / number - 1)
            found.append("%s: %.1f instructions, %.1f %% more than %.1f" % (row, here[row], more, number))
    return found + ["%s: the baseline lacks it" % row for row in here if row not in before]


def main(arguments):
    if arguments not in ([], ["--write"]):
        sys.exit(__doc__)
    here, name, sections = counted(), conditions(), read()
    if arguments:
        sections[name] = here
        write(sections)
        return 0
    if not sections:
        sys.exit("%s has no section; scripts/instructions.py --write" % BASELINE.name)
    before, allowed = sections.get(name), 1.01
    if before is None:
        first = next(iter(sections))
        print("the baseline has no section [%s]; rows that move no data are compared with [%s]" % (name, first))
        still = lambda rows: {row: number for row, number in rows.items() if " null " in row}
        here, before, allowed = still(here), still(sections[first]), 1.2
    found = compared(here, before, allowed)
    for line in found:
        print(line)
    fewer = sum(1 for row in before if row in here and here[row] * 1.01 < before[row])
    if fewer:
        print("%d rows have over 1 %% fewer: scripts/instructions.py --write lowers the baseline" % fewer)
    if found:
        print("if a commit is worth it, it changes the baseline: scripts/instructions.py --write")
    print("%d rows compared, %d findings" % (len(before), len(found)))
    return 1 if found else 0


sys.exit(main(sys.argv[1:]))
