#!/usr/bin/env python3
"""Sluice's encrypt beside the kernel's dm-crypt, and its replicate beside dm-mirror, in one guest: the same load, the
same disks, the same processors.

  comparison.py [--rounds 5] [--seconds 0.5] [--kernel 6.12]      prints the tables; see scripts/comparison.sh
  comparison.py --instructions [--rounds 5]     counts the instructions of the whole guest per command instead

A guest runs the daemon, and has dm-crypt, dm-mirror, vhost-scsi and nvmet of its own kernel. Each stack gets the same load
(load.c), one after the other, several times around; medians count. Throughput and the processor time of the whole guest, the
load's own included, are ratios to the kernel's. The guest is emulated where there is no KVM, and then the emulator decides.

Instructions are counted in an emulated guest. One virtual processor has them as its clock, so that a run has no noise.
Two have threads of their own, and the median of the rounds counts.
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
ENCRYPTS = ("sluice", "sluice-encrypt", "sluice-encrypt-process")
REPLICATES = ("sluice-replicate", "sluice-replicate-process")
# What is compared: with the first after the disk, in the order of the tables.
TABLES = {
    "dm-crypt": {
        "disk": "the disk alone",
        "dm-crypt": "dm-crypt",
        "vhost-scsi+dm-crypt": "dm-crypt, through vhost-scsi",
        "nvmet+dm-crypt": "dm-crypt, through nvmet and nvme-loop",
        ENCRYPTS[0]: "Sluice, nothing encrypted",
        ENCRYPTS[1]: "Sluice, encrypt in the daemon",
        ENCRYPTS[2]: "Sluice, encrypt in a process",
    },
    "dm-mirror": {
        "disk": "the disk alone",
        "dm-mirror": "dm-mirror",
        "vhost-scsi+dm-mirror": "dm-mirror, through vhost-scsi",
        REPLICATES[0]: "Sluice, replicate in the daemon",
        REPLICATES[1]: "Sluice, replicate in a process",
    },
}
STACKS = tuple(dict.fromkeys(stack for table in TABLES.values() for stack in table))
DISKS = {"sluice": (4,), "sluice-encrypt": (5,), "sluice-encrypt-process": (6,),  # the rest has those before
         "sluice-replicate": (13, 14, 15), "sluice-replicate-process": (16, 17, 18)}


def encrypted(name, place):
    """A drive over a disk, with the function or without."""
    options = 'options = { key_file = "%s/key", sector_size = "4096" }' % FOLDER
    function = ['functions = [ { kind = "uif", %s, %s } ]' % (place, options)] if place else []
    return [sluice.Namespace("file", "64MiB", 4096, "/dev/ram%d" % DISKS[name][0], function)]


def replicated(name, place):
    """A drive over two disks, with its log on a third."""
    primary, secondary, log = ("/dev/ram%d" % disk for disk in DISKS[name])
    function = (
        'functions = [ { kind = "uif", %s, layers = [ { target = "file", path = "%s", block_size = 4096 },'
        ' { target = "file", path = "%s", size = "4MiB", block_size = 4096 } ] } ]' % (place, secondary, log))
    return [sluice.Namespace("file", "64MiB", 4096, primary, [function, 'paths = [ { name = "primary", below = 1 } ]'])]


def drives():
    """The daemon's: plain, encrypted in it and in a process, kept twice by it and by a process."""
    return {
        ENCRYPTS[0]: encrypted(ENCRYPTS[0], None),
        ENCRYPTS[1]: encrypted(ENCRYPTS[1], 'function = "encrypt", place = "daemon"'),
        ENCRYPTS[2]: encrypted(ENCRYPTS[2], 'socket = "%s/encrypt.sock"' % FOLDER),
        REPLICATES[0]: replicated(REPLICATES[0], 'function = "replicate", place = "daemon"'),
        REPLICATES[1]: replicated(REPLICATES[1], 'socket = "%s/replicate.sock"' % FOLDER),
    }


def compare(kernel, rounds, seconds, report, cpus=2, counts=None):
    """Runs it; the guest and its numbers by stack and cell: lists of (commands/s, processor ns per command). With
    `counts`, a file, the second number is instructions per command."""
    with guest.scratch() as folder:
        inside = sluice.Daemon(FOLDER, drives(), cores=(), write=False)
        files = {"key": os.path.join(folder, "key"), "sluice.toml": os.path.join(folder, "sluice.toml")}
        with open(files["key"], "wb") as file:
            file.write(random.Random(4).randbytes(64))
        with open(files["sluice.toml"], "w") as file:
            file.write(inside.toml())
        files["replicate.o"] = sluice.compile_classifier("replicate", folder)
        files.update(sluice.files_inside(), load=guest.tool("load"))
        with open(os.path.join(guest.HERE, "comparison.sh")) as file:
            script = "CELLS='%s' ROUNDS=%d SECONDS_EACH=%s DAEMON='%s' FOLDER=%s SOCKETS='%s' REPLICATES='%s'\n%s" % (
                "\n".join("%s %d %d" % cell for cell in CELLS), rounds, seconds, sluice.INSIDE, FOLDER,
                " ".join(inside.sockets()), " ".join(REPLICATES), file.read())
        limit = 150 + 4 * rounds * len(CELLS) * len(STACKS) * (seconds + 0.2)
        if counts:
            limit *= 10
        run = guest.Guest(kernel, script, cpus=cpus, memory_mib=3072, timeout_s=limit, files=files, counts=counts)
        report.guest(run, "comparison")
    loads = [(key, value) for key, value in run.notes.items() if key.count("/") == 4]
    counted = iter(())
    if counts:
        with open(counts) as file:
            lines = [int(line) for line in file]
        report.check("each load was counted", len(lines) == len(loads), "%d of %d" % (len(lines), len(loads)))
        if len(lines) != len(loads):
            return run, {}
        counted = iter(lines)
    numbers = {}
    for key, value in loads:
        _, stack, operation, size, depth = key.split("/")
        commands, elapsed, whole, _ = map(int, value.split())
        whole = next(counted, whole)
        cell = numbers.setdefault((operation, int(size), int(depth)), {})
        cell.setdefault(stack, []).append((commands * 1e9 / elapsed, whole / max(commands, 1)))
    return run, numbers


def table(numbers, base, explained):
    """Markdown: a row for each stack and cell, with its ratios to the kernel's stack and to that behind vhost-scsi."""
    bases = (base, "vhost-scsi+" + base)
    lines = ["| load | stack | thousand commands/s | MB/s | of %s | of it through vhost-scsi | processor time of %s's, per command "
             "| of its through vhost-scsi |" % (base, base), "|---|---|---:|---:|---:|---:|---:|---:|"]
    for operation, size, depth in CELLS:
        cell = numbers[operation, size, depth]
        for stack in explained:
            rate = statistics.median(rate for rate, _ in cell[stack])
            # round by round, as machines are noisy; a processor time of none is below what the clock can tell
            ratios = [statistics.median(own[n] / other[n] if other[n] else 0 for own, other in zip(cell[stack], cell[against]))
                      for n in (0, 1) for against in bases]
            lines.append("| %s %d KiB, QD %d | %s | %.1f | %.0f | %.2f | %.2f | %.2f | %.2f |" % (
                operation, size >> 10, depth, explained[stack], rate / 1e3, rate * size / 1e6, *ratios))
    return "\n".join(lines)


def run(report, kernel="6.12", rounds=1, seconds=0.3):
    report.theme("comparison: encrypt beside dm-crypt, replicate beside dm-mirror, Linux %s" % kernel)
    machine, numbers = compare(kernel, rounds, seconds, report)
    missing = [(stack, cell) for cell in CELLS for stack in STACKS if len(numbers.get(cell, {}).get(stack, ())) != rounds]
    report.check("comparison: every stack did every load", not missing, str(missing))
    if not missing:
        print("\nLinux %s in a guest (%s), cipher of dm-crypt:%s; %d rounds of %s s" % (
            machine.release, guest.acceleration(), machine.notes.get("cipher"), rounds, seconds))
        for base, explained in TABLES.items():
            print("\n" + table(numbers, base, explained), flush=True)


def count(report, kernel, rounds):
    """Counts instructions with one virtual processor and with two."""
    numbers = {}
    for cpus, rounds, seconds in ((1, 1, 0.02), (2, rounds, 0.3)):
        with guest.scratch() as folder:
            _, numbers[cpus] = compare(kernel, rounds, seconds, report, cpus, os.path.join(folder, "counts"))
    if all(numbers.values()):
        for base, explained in TABLES.items():
            print("\n" + table_of_instructions(numbers, base, explained), flush=True)


def table_of_instructions(numbers, base, explained):
    """Markdown: the thousands of instructions per command, for one processor and two, with their ratio to those of the
    kernel's stack behind vhost-scsi."""
    lines = ["| load | stack | thousand instructions per command, one processor | of those through vhost-scsi "
             "| two processors | of those through vhost-scsi |", "|---|---|---:|---:|---:|---:|"]
    for operation, size, depth in CELLS:
        for stack, name in explained.items():
            cells = []
            for cpus in (1, 2):
                cell = numbers[cpus][operation, size, depth]
                own, other = (statistics.median(count for _, count in cell[which])
                              for which in (stack, "vhost-scsi+" + base))
                cells += ["%.1f" % (own / 1e3), "%.2f" % (own / other)]
            lines.append("| %s %d KiB, QD %d | %s | %s |" % (operation, size >> 10, depth, name, " | ".join(cells)))
    return "\n".join(lines)


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12", choices=guest.KERNELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of time")
    options = parser.parse_args()
    report = Report()
    if options.instructions:
        count(report, options.kernel, options.rounds)
        return report.finish()
    run(report, options.kernel, options.rounds, options.seconds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
