#!/usr/bin/env python3
"""Sluice's encrypt beside the kernel's dm-crypt, in one guest: the same load, the same disks, the same processors.

  comparison.py [--rounds 5] [--seconds 0.5] [--kernel 6.12]      prints the tables; see scripts/comparison.sh

A guest runs the daemon, and has dm-crypt and nvmet of its own kernel. Each stack gets the same load (load.c), one after
the other, several times around; medians count. Throughput and the processor time of the whole guest, the load's own
included, are ratios to dm-crypt's. The guest is emulated where there is no KVM: then ratios are of emulated instructions.
"""

import argparse
import os
import random
import statistics
import sys

import guest
import sluice
from report import Report

FOLDER = "/run/sluice"
CELLS = (("read", 4096, 1), ("read", 4096, 32), ("write", 4096, 32), ("read", 131072, 8), ("write", 131072, 8))
BASE = "dm-crypt"
OURS = ("sluice", "sluice-encrypt", "sluice-encrypt-process")
STACKS = ("disk", BASE, "nvmet+dm-crypt", *OURS)
EXPLAINED = {
    "disk": "the disk alone",
    BASE: "dm-crypt",
    "nvmet+dm-crypt": "dm-crypt, through nvmet and nvme-loop",
    OURS[0]: "Sluice, nothing encrypted",
    OURS[1]: "Sluice, encrypt in the daemon",
    OURS[2]: "Sluice, encrypt in a process",
}


def drives():
    """The daemon's: plain, encrypted in it, and encrypted in a process."""
    options = 'options = { key_file = "%s/key", sector_size = "4096" }' % FOLDER
    functions = (
        None,
        'function = "encrypt", place = "daemon", ' + options,
        'socket = "%s/function.sock", %s' % (FOLDER, options),
    )
    return {
        name: [sluice.Namespace("file", "64MiB", 4096, "/dev/ram%d" % disk,
                                ['functions = [ { kind = "uif", %s } ]' % function] if function else [])]
        for disk, (name, function) in enumerate(zip(OURS, functions), 3)
    }


def compare(kernel, rounds, seconds, report):
    """Runs it; the guest and its numbers by stack and cell: lists of (commands/s, processor ns per command)."""
    with guest.scratch() as folder:
        inside = sluice.Daemon(FOLDER, drives(), cores=(), write=False)
        files = {"key": os.path.join(folder, "key"), "sluice.toml": os.path.join(folder, "sluice.toml")}
        with open(files["key"], "wb") as file:
            file.write(random.Random(4).randbytes(64))
        with open(files["sluice.toml"], "w") as file:
            file.write(inside.toml())
        files.update(sluice.files_inside(), load=guest.tool("load"))
        with open(os.path.join(guest.HERE, "comparison.sh")) as file:
            script = "CELLS='%s' ROUNDS=%d SECONDS_EACH=%s DAEMON='%s' FOLDER=%s SOCKETS='%s'\n%s" % (
                "\n".join("%s %d %d" % cell for cell in CELLS), rounds, seconds, sluice.INSIDE, FOLDER,
                " ".join(inside.sockets()), file.read())
        limit = 90 + 4 * rounds * len(CELLS) * len(STACKS) * (seconds + 0.2)
        run = guest.Guest(kernel, script, memory_mib=2048, timeout_s=limit, files=files)
        report.guest(run, "comparison")
    numbers = {}
    for key, value in run.notes.items():
        if key.count("/") == 4:
            _, stack, operation, size, depth = key.split("/")
            commands, elapsed, whole, _ = map(int, value.split())
            cell = numbers.setdefault((operation, int(size), int(depth)), {})
            cell.setdefault(stack, []).append((commands * 1e9 / elapsed, whole / max(commands, 1)))
    return run, numbers


def table(numbers):
    """Markdown: a row for each stack and cell."""
    lines = ["| load | stack | thousand commands/s | MB/s | of dm-crypt | processor time of dm-crypt's, per command |",
             "|---|---|---:|---:|---:|---:|"]
    for operation, size, depth in CELLS:
        cell = numbers[operation, size, depth]
        base = [statistics.median(column) for column in zip(*cell[BASE])]
        for stack in STACKS:
            # round by round, as machines are noisy
            rate, cpu = (statistics.median(column) for column in zip(*cell[stack]))
            of_base = [statistics.median(a[n] / b[n] for a, b in zip(cell[stack], cell[BASE]) if b[n]) if base[n] else 0
                       for n in (0, 1)]
            lines.append("| %s %d KiB, QD %d | %s | %.1f | %.0f | %.2f | %.2f |" % (
                operation, size >> 10, depth, EXPLAINED[stack], rate / 1e3, rate * size / 1e6, *of_base))
    return "\n".join(lines)


def run(report, kernel="6.12", rounds=1, seconds=0.3):
    report.theme("comparison: encrypt beside dm-crypt, Linux %s" % kernel)
    machine, numbers = compare(kernel, rounds, seconds, report)
    complete = all(len(numbers.get(cell, {}).get(stack, ())) == rounds for cell in CELLS for stack in STACKS)
    report.check("comparison: every stack did every load", complete, str(numbers))
    if complete:
        print("\nLinux %s in a guest (%s), cipher of dm-crypt:%s; %d rounds of %s s\n\n%s\n" % (
            machine.release, guest.acceleration(), machine.notes.get("cipher"), rounds, seconds, table(numbers)), flush=True)


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12", choices=guest.KERNELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    report = Report()
    run(report, options.kernel, options.rounds, options.seconds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
