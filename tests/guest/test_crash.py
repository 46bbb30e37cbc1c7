#!/usr/bin/env python3
"""The daemon ends under a guest's I/O on a file drive: every acknowledged write is there for a fresh guest.

  test_crash.py [--rounds 2] [--kernel 6.12]

The guest writes stamped blocks (blockstamp.c) and reports every acknowledged one over its serial
port. After some thousands the daemon is killed (which takes QEMU with it: the socket closes), then
started again on the same file, and a fresh guest checks every block against what was reported.
"""

import argparse
import os
import random
import sys

import guest
import sluice
from report import Report

WORKERS, BLOCKS = 8, 512  # of 4 KiB each: 16 MiB that are overwritten again and again
STAMPS = (1500, 6000)  # how many are reported before the end, at random in between
WRITE = "within 15 namespace_of 0000:00:04.0 1 > /dev/null\n/blockstamp write /dev/nvme0n1 %d %d 0 0 >&9\n"
CHECK = """
within 15 namespace_of 0000:00:04.0 1 > /dev/null
/blockstamp check /dev/nvme0n1 %d %d < /stamps > /tmp/found; code=$?
cat /tmp/found
exit $code
"""


class Stamps:
    """Collects the reports; calls `enough` once when there are as many as wanted."""

    def __init__(self, wanted, enough):
        self.lines, self.wanted, self.enough, self.ended = [], wanted, enough, None

    def line(self, line):
        if not line.startswith("stamp "):
            return not line.startswith(("up ", "exit "))  # a line cut short by the end
        if line.count(" ") == 2:
            self.lines.append(line)
        if len(self.lines) == self.wanted:
            self.ended = self.enough()
        return True


def write_until(daemon, kernel, end):
    """A guest that writes until `end` has ended the daemon; returns what it reported."""
    stamps = Stamps(random.randint(*STAMPS), end)
    writer = guest.Guest(kernel, WRITE % (WORKERS, BLOCKS), daemon.sockets(), on_line=stamps.line, timeout_s=120,
                         files={"blockstamp": guest.blockstamp()}, quiet=True)
    try:
        writer.run()
    except guest.GuestError as error:  # QEMU cannot live without the daemon, so this is as it must be
        if len(stamps.lines) < stamps.wanted:
            raise guest.GuestError("only %d writes were reported: %s" % (len(stamps.lines), error))
    return stamps


def check(report, daemon, kernel, stamps, folder, name):
    """A fresh guest looks at every block through the daemon."""
    path = os.path.join(folder, "stamps")
    with open(path, "w") as file:
        file.write("\n".join(stamps.lines) + "\n")
    reader = guest.Guest(kernel, CHECK % (WORKERS, BLOCKS), daemon.sockets(), timeout_s=120,
                         files={"blockstamp": guest.blockstamp(), "stamps": path})
    code = reader.run()
    report.check(name, code == 0, reader.last_words())


def round_trip(report, kernel, polite):
    """One end of the daemon, by SIGKILL or by SIGTERM, and what a fresh guest finds."""
    how = "SIGTERM" if polite else "SIGKILL"
    report.theme("crash: %s of the daemon under I/O, Linux %s" % (how, kernel))
    name = "%s: every acknowledged write is there" % how
    with guest.scratch() as folder:
        drives = {"c": [sluice.Namespace("file", "64MiB", 512, os.path.join(folder, "c.img"))]}
        daemon = sluice.Daemon(folder, drives)
        try:
            with daemon:
                stamps = write_until(daemon, kernel, daemon.stop if polite else daemon.kill)
            if polite:
                report.check("SIGTERM: the daemon ends cleanly", stamps.ended == 0, "exit code %s" % stamps.ended)
            with daemon:
                check(report, daemon, kernel, stamps, folder, name)
        except guest.GuestError as error:
            report.check(name, False, str(error))
            print(daemon.log_tail(), flush=True)


def run(report, kernel="6.12", rounds=1):
    for _ in range(rounds):
        round_trip(report, kernel, polite=False)
    round_trip(report, kernel, polite=True)


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12", choices=guest.KERNELS)
    parser.add_argument("--rounds", type=int, default=2, help="kills")
    options = parser.parse_args()
    report = Report()
    run(report, options.kernel, options.rounds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
