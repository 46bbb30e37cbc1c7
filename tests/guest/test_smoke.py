#!/usr/bin/env python3
"""Stock kernels use two drives with two namespaces each: see smoke.sh for what they do.

  test_smoke.py [--kernel 6.12]... [--reference]     --reference: against QEMU's own NVMe emulation
"""

import argparse
import json
import os
import sys

import guest
import sluice
from report import Report

RESULTS = os.path.join(guest.ROOT, "target", "guest")
TIMEOUT_S = 400


def drives(folder):
    """A drive in memory and one on files; xfs needs 300 MiB."""
    image = lambda number: os.path.join(folder, "b%d.img" % number)
    return {
        "a": [sluice.Namespace("memory", "512MiB"), sluice.Namespace("memory", "512MiB", 4096)],
        "b": [sluice.Namespace("file", "512MiB", 512, image(1)), sluice.Namespace("file", "512MiB", 4096, image(2))],
    }


def smoke(report, kernel, reference=False):
    """One kernel; returns its numbers for the table."""
    report.theme("smoke: Linux %s" % kernel)
    with open(os.path.join(guest.HERE, "smoke.sh")) as file:
        script = file.read()
    with guest.scratch() as folder:
        try:
            backend = (sluice.Reference if reference else sluice.Daemon)(folder, drives(folder))
            with backend:
                run = guest.Guest(
                    kernel, "BACKEND=%s\n%s" % ("reference" if reference else "sluice", script),
                    sockets=[] if reference else backend.sockets(), timeout_s=TIMEOUT_S,
                    qemu_args=backend.qemu_args() if reference else (),
                    steps={} if reference else {"resize": backend.resize},
                )
                report.guest(run, kernel)
                if not reference:
                    ended = backend.stop()
                    report.check("%s: the daemon ends cleanly" % kernel, ended == 0, "exit code %s" % ended)
                    complaints = backend.complaints()
                    report.check("%s: the daemon's log has no errors" % kernel, not complaints, complaints)
        except guest.GuestError as error:
            report.check("smoke %s" % kernel, False, str(error))
            return None
    return {
        "kernel": kernel, "release": run.release, "backend": "reference" if reference else "sluice",
        "accel": guest.acceleration(), "iops": float(run.notes.get("iops") or 0),
        "latency_us": float(run.notes.get("latency_us") or 0),
    }


def table(rows):
    """The numbers as markdown."""
    lines = ["| kernel | commands/s | average latency (us) |", "|---|---:|---:|"]
    lines += ["| %s | %.0f | %.0f |" % (row["release"] or row["kernel"], row["iops"], row["latency_us"]) for row in rows]
    return "\n".join(lines) + "\n"


def save(rows):
    os.makedirs(RESULTS, exist_ok=True)
    with open(os.path.join(RESULTS, "smoke.json"), "w") as file:
        json.dump(rows, file, indent=2)
    with open(os.path.join(RESULTS, "smoke.md"), "w") as file:
        file.write("4 KiB random reads of the memory drive, QD 16, 2 vCPUs, %s\n\n%s" % (rows[0]["accel"], table(rows)))


def run(report, kernels=guest.KERNELS, reference=False):
    rows = [row for row in (smoke(report, kernel, reference) for kernel in kernels) if row]
    if rows:
        save(rows)
        print("\n4 KiB random reads, QD 16 (%s)\n%s" % (rows[0]["accel"], table(rows)), flush=True)


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", choices=guest.KERNELS)
    parser.add_argument("--reference", action="store_true")
    options = parser.parse_args()
    report = Report()
    run(report, options.kernel or guest.KERNELS, options.reference)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
