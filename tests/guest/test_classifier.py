#!/usr/bin/env python3
"""A classifier comes to a drive while a guest uses it, is replaced under fio, and says what the guest did.

  test_classifier.py [--kernel 6.12]

The classifier is `observe` (classifiers/observe.c), compiled here with clang.
"""

import json
import sys

import guest
import sluice
from report import by_kernel

TIMEOUT_S = 180
REPLACEMENTS = 20
SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
check "host attaches observe" host attach
fio --name=load --filename=/dev/$N --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --bs=4k --rw=randrw \\
  --iodepth=16 --size=32m --loops=4 --minimal > /tmp/load.out 2>&1 &
load=$!
sleep 1
check "host replaces it under load" host replace
if wait $load; then pass "verified I/O goes on"; else tail -n 20 /tmp/load.out; fail "verified I/O goes on"; fi
dd if=/dev/$N of=/dev/null bs=64k count=1 skip=600 iflag=direct 2>/dev/null
check "host sees what was done" host look
check "host detaches it" host detach
check "the drive is read without it" dd if=/dev/$N of=/dev/null bs=1M count=8 iflag=direct
check "no complaint in the kernel log" quiet_log 'timeout|I/O error'
exit 0
"""


class Observed:
    """The drive `a` and its classifier, for the guest's steps."""

    def __init__(self, daemon, program):
        self.daemon, self.program = daemon, program

    def attach(self):
        self.daemon.command("classifier", "attach", "a", self.program, "--precise-clock")

    def replace(self):
        for _ in range(REPLACEMENTS):
            self.daemon.command("classifier", "replace", "a", self.program)

    def numbers(self, name):
        """A map's values by their first 64-bit word."""
        dump = json.loads(self.daemon.command("classifier", "maps", "dump", "a", name, "-o", "json"))
        return [int.from_bytes(bytes.fromhex(entry["value"])[:8], "little") for entry in dump["entries"]]

    def look(self):
        """Every command must be in all of the maps; prints the histogram of the reads."""
        opcodes, sizes, reads = self.numbers("opcodes"), self.numbers("sizes"), self.numbers("read_ns")
        writes, status = self.numbers("write_ns"), json.loads(self.daemon.command("classifier", "show", "a", "-o", "json"))
        print("  latency of %d reads, nanoseconds:" % sum(reads))
        for power, commands in enumerate(reads):
            if commands:
                print("  %12d .. %-12d %8d %s" % (1 << power, 2 << power, commands, "#" * (60 * commands // max(reads))))
        expect("all reads are in the histogram", opcodes[2] == sum(reads) > 8192)
        expect("all writes are in the histogram", opcodes[1] == sum(writes) > 1000)
        expect("most commands have 4 KiB", sizes[12] > 8192)
        expect("one command has 64 KiB", sizes[16] >= 1)
        expect("no error was made", not status["errors"] and status["traps"] == 0)

    def detach(self):
        self.daemon.command("classifier", "detach", "a")


def expect(what, holds):
    if not holds:
        raise guest.GuestError("not so: " + what)


def run(report, kernel="6.12"):
    report.theme("classifier: observe under fio, Linux %s" % kernel)
    with guest.scratch() as folder:
        daemon = sluice.Daemon(folder, {"a": [sluice.Namespace("memory", "64MiB")]})
        observed = Observed(daemon, sluice.compile_classifier("observe", folder))
        steps = {verb: getattr(observed, verb) for verb in ("attach", "replace", "look", "detach")}
        try:
            with daemon:
                report.guest(guest.Guest(kernel, SCRIPT, daemon.sockets(), timeout_s=TIMEOUT_S, steps=steps), "observe")
                report.ended(daemon, "observe: ")
        except guest.GuestError as error:
            report.check("observe", False, str(error))


if __name__ == "__main__":
    sys.exit(by_kernel(__doc__, run))
