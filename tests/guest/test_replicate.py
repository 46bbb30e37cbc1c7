#!/usr/bin/env python3
"""A drive that is kept twice, while a guest uses it: copies fail, processes die, and nothing is lost.

  test_replicate.py [--kernel 6.12]

First the guest's verified load goes on while the secondary is taken out and comes back, and while the function's process
is killed. Then the daemon is killed under stamped writes, and a fresh guest looks for every acknowledged one while the
copies are made equal again. After each of the two both files are compared whole.
"""

import json
import os
import signal
import sys
import time

import guest
import sluice
import test_crash
from report import by_kernel

TIMEOUT_S = 120
PATIENCE_S = 40
SIZE = "64MiB"
SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
verified="fio --filename=/dev/$N --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --minimal"
# load STEP... : verified I/O; the host takes these steps meanwhile
load() {
  echo "$*" > /tmp/going
  { while [ -e /tmp/going ]; do
      $verified --name=small --bs=4k --rw=randrw --iodepth=16 --size=4m &&
      $verified --name=large --bs=128k --rw=randwrite --do_verify=1 --iodepth=4 --offset=32m --size=8m || exit 1
    done > /tmp/load.out 2>&1; } &
  loading=$!
  for step; do sleep 0.5; check "host, under load: $step" host $step; done
  sleep 0.5
  rm /tmp/going
  if wait $loading; then pass "verified I/O goes on"; else tail -n 20 /tmp/load.out; fail "verified I/O goes on"; fi
}
load fail resync synced
load kill kill synced
mkfs.ext4 -q /dev/$N && mkdir -p /mnt/a && mount -t ext4 /dev/$N /mnt/a
dd if=/dev/urandom of=/mnt/a/file bs=1M count=16 2>/dev/null
check "discard" fstrim /mnt/a
check "umount" umount /mnt/a
check "e2fsck" e2fsck -fn /dev/$N
check "host compares the copies" host compare
check "no complaint in the kernel log" quiet_log 'timeout|I/O error'
exit 0
"""


class Replicated:
    """The drive `a`, its two copies and its log in a folder; and the steps that a guest asks for."""

    def __init__(self, folder):
        self.primary, self.secondary = (os.path.join(folder, name) for name in ("primary.img", "secondary.img"))
        function = (
            'functions = [ { kind = "uif", function = "replicate", layers = ['
            ' { target = "file", path = "%s", size = "%s" }, { target = "file", path = "%s", size = "4MiB" } ] } ]'
            % (self.secondary, SIZE, os.path.join(folder, "replicate.log")))
        paths = 'paths = [ { name = "primary", below = 1 } ]'
        self.daemon = sluice.Daemon(folder, {"a": [sluice.Namespace("file", SIZE, 512, self.primary, [function, paths])]})
        self.program = sluice.compile_classifier("replicate", folder)

    def tell(self, order):
        return self.daemon.command("function", "tell", "a", order)

    def status(self):
        return json.loads(self.tell("status"))

    def attach(self):
        self.daemon.command("classifier", "attach", "a", self.program)

    def fail(self):
        self.tell("fail")
        expect("the secondary is out", self.status()["state"] == "out")

    def resync(self):
        time.sleep(0.5)  # the load writes what the secondary does not get
        expect("the secondary lacks something", self.status()["stale_bytes"] > 0)
        self.tell("resync")

    def synced(self):
        eventually("the copies are in sync", lambda: self.status()["state"] == "in sync")

    def pid(self):
        return json.loads(self.daemon.command("function", "show", "a", "-o", "json"))["functions"][0].get("pid")

    def kill(self):
        """The function's process dies; another takes its place."""
        before = self.pid()
        os.kill(before, signal.SIGKILL)
        eventually("the next process", lambda: self.pid() not in (None, before))

    def compare(self):
        """The function's own comparison."""
        self.tell("check")
        eventually("the comparison ends", lambda: not self.status()["check"]["running"])
        found = self.status()["check"]
        expect("the copies are equal: %s" % found, found["bytes"] > 0 and found["different"] == found["unreadable"] == 0)

    def are_equal(self):
        """Ours, whole, with nobody writing."""
        with open(self.primary, "rb") as primary, open(self.secondary, "rb") as secondary:
            while True:
                parts = primary.read(1 << 20), secondary.read(1 << 20)
                if parts[0] != parts[1]:
                    return False
                if not parts[0]:
                    return primary.tell() >= sluice.size_bytes(SIZE)


def expect(what, holds):
    if not holds:
        raise guest.GuestError("not so: " + what)


def eventually(what, holds):
    limit = time.monotonic() + PATIENCE_S
    while not holds():
        expect("%s (%d s)" % (what, PATIENCE_S), time.monotonic() < limit)
        time.sleep(0.1)


def under_load(report, kernel):
    """A guest that loses nothing, whatever fails below it."""
    with guest.scratch() as folder:
        drive = Replicated(folder)
        with drive.daemon as daemon:
            drive.attach()
            steps = {verb: getattr(drive, verb) for verb in ("fail", "resync", "synced", "kill", "compare")}
            report.guest(guest.Guest(kernel, SCRIPT, daemon.sockets(), timeout_s=TIMEOUT_S, steps=steps), "replicate")
            ended = daemon.stop()
            report.check("replicate: the daemon ends cleanly", ended == 0, "exit code %s" % ended)
        report.check("replicate: both copies are equal", drive.are_equal())


def crash(report, kernel):
    """The daemon dies under stamped writes."""
    with guest.scratch() as folder:
        drive = Replicated(folder)
        with drive.daemon as daemon:
            drive.attach()
            stamps = test_crash.write_until(daemon, kernel, daemon.kill)
        with drive.daemon as daemon:
            test_crash.check(report, daemon, kernel, stamps, folder, "SIGKILL: every acknowledged write is there")
            drive.synced()
            ended = daemon.stop()
            report.check("SIGKILL: the next daemon ends cleanly", ended == 0, "exit code %s" % ended)
        report.check("SIGKILL: both copies are equal after the resync", drive.are_equal())


def run(report, kernel="6.12"):
    for title, test in (("copies and processes fail under load", under_load), ("SIGKILL of the daemon under load", crash)):
        report.theme("replicate: %s, Linux %s" % (title, kernel))
        try:
            test(report, kernel)
        except guest.GuestError as error:
            report.check("replicate: " + title, False, str(error))


if __name__ == "__main__":
    sys.exit(by_kernel(__doc__, run))
