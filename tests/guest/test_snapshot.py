#!/usr/bin/env python3
"""A guest's ext4 is frozen, written on, read as it was through a second drive, and gone back to.

  test_snapshot.py [--kernel 6.12]

The drive has the function `snapshot` in a process and the classifier classifiers/snapshot.c before it.
"""

import json
import os
import sys

import guest
import sluice
from report import by_kernel

TIMEOUT_S = 120
WRITE = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
mkdir -p /mnt/a
check "mkfs" mkfs.ext4 -q /dev/$N
check "mount" mount -t ext4 /dev/$N /mnt/a
dd if=/dev/urandom of=/mnt/a/one bs=1M count=8 2>/dev/null
sha256sum < /mnt/a/one > /mnt/a/sum
check "umount" umount /mnt/a
check "host freezes it" host create
check "mount again" mount -t ext4 /dev/$N /mnt/a
dd if=/dev/urandom of=/mnt/a/one bs=1M count=8 conv=notrunc 2>/dev/null
dd if=/dev/urandom of=/mnt/a/two bs=1M count=8 2>/dev/null
rm /mnt/a/sum
check "umount again" umount /mnt/a
exit 0
"""
READ = """
A=0000:00:04.0
B=0000:00:05.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
within 15 namespace_of $B 1 > /dev/null || { fail "the version appears"; exit 1; }
N=$(namespace_of $A 1)
O=$(namespace_of $B 1)
mkdir -p /mnt/a /mnt/b
is_old() { [ "$(sha256sum < $1/one)" = "$(cat $1/sum)" ] && [ ! -e $1/two ]; }
is_new() { [ ! -e $1/sum ] && [ "$(wc -c < $1/two)" = 8388608 ]; }
check "mount the drive" mount -t ext4 /dev/$N /mnt/a
check "mount the version beside it" mount -t ext4 -o ro,noload /dev/$O /mnt/b
check "the drive is what was written last" is_new /mnt/a
check "the version is what it was" is_old /mnt/b
dd if=/dev/urandom of=/mnt/a/three bs=1M count=8 2>/dev/null
check "umount the drive" umount /mnt/a
check "host goes back" host rollback
echo 3 > /proc/sys/vm/drop_caches
check "mount what it was" mount -t ext4 /dev/$N /mnt/a
check "the drive is what it was" is_old /mnt/a
check "the version is what it was, still" is_old /mnt/b
check "umount all" umount /mnt/a /mnt/b
check "no complaint in the kernel log" quiet_log 'timeout|I/O error'
exit 0
"""


def namespace(folder, version=None):
    """A drive of 64 MiB on the store, or a version of it."""
    path = os.path.join(folder, "disk.store")
    option = ', version = "%s"' % version if version else ""
    function = 'functions = [ { kind = "uif", function = "snapshot", options = { size = "64MiB"%s }%s } ]' % (
        option, "" if version else ', translations = "chunks"')
    more = ["read_only = true"] if version else ['paths = [ { name = "store", below = 1, beyond = true } ]']
    return sluice.Namespace("file", "160MiB", path=path, more=[function] + more)


def one_guest(report, kernel, folder, drives, script, steps, name):
    """A daemon with these drives, and a guest on all of them. The classifier of the first is remembered."""
    daemon = sluice.Daemon(folder, drives)
    try:
        with daemon:
            if len(drives) == 1:
                daemon.command("classifier", "attach", "a", sluice.compile_classifier("snapshot", folder))
            orders = {step: lambda words=words: daemon.command("snapshot", *words) for step, words in steps.items()}
            report.guest(guest.Guest(kernel, script, daemon.sockets(), timeout_s=TIMEOUT_S, steps=orders), name)
            shown = json.loads(daemon.command("classifier", "show", "a", "-o", "json"))
            report.check("%s: commands went past the function" % name, sum(shown["counters"][:2]) > 50, str(shown["counters"][:3]))
            report.ended(daemon, "%s: " % name)
    except guest.GuestError as error:
        report.check(name, False, str(error))


def run(report, kernel="6.12"):
    report.theme("snapshot: ext4 frozen, read as it was, gone back to, Linux %s" % kernel)
    with guest.scratch() as folder:
        one_guest(report, kernel, folder, {"a": [namespace(folder)]}, WRITE, {"create": ("create", "a", "monday")}, "written")
        drives = {"a": [namespace(folder)], "b": [namespace(folder, "monday")]}
        one_guest(report, kernel, folder, drives, READ, {"rollback": ("rollback", "a", "monday")}, "read")


if __name__ == "__main__":
    sys.exit(by_kernel(__doc__, run))
