#!/usr/bin/env python3
"""A guest discards an image whose file system has an extent for every other 4 KiB, and resets its drive meanwhile.

  test_discard.py [--kernels 6.12] [--gib 16] [--latency]

The file system takes tens of microseconds for each extent, so the discard of 16 GiB takes minutes. The drive answers
all the while: no command times out, and the controller is ready again within a second of a reset. (Linux's reset is
over only when the commands have ended that it sends again, so that is not what is measured.)
"""

import os
import subprocess
import sys
import tempfile
import time

import guest
import sluice
from report import by_kernels

GIB = 1
BOOT_S = 200
SECONDS_OF_A_GIB = 60  # far more than it takes
STEP = 4096
BATCH = 1 << 30

SCRIPT = """
disk=$(namespace_of 0000:00:04.0 1); ctrl=$(controller_of 0000:00:04.0)
hundredths() { cut -d' ' -f1 /proc/uptime | tr -d .; }
# When the driver had its queues again, by the kernel's log.
ready() { dmesg | grep "nvme $ctrl: .* default/read/poll queues" | tail -n 1 | sed 's/^\\[ *\\([0-9]*\\)\\.\\([0-9][0-9]\\).*/\\1\\2/'; }
host before
begin=$(hundredths)
blkdiscard /dev/$disk & work=$!
check "the discard has begun" host begun
resets=0; longest=0
while [ $resets -lt 5 ]; do
  kill -0 $work 2>/dev/null || break
  at=$(hundredths)
  check "reset $resets is done" sh -c "echo 1 > /sys/class/nvme/$ctrl/reset_controller"
  took=$(( $(ready) - at ))
  check "reset $resets has a time" test $took -ge 0
  [ $took -gt $longest ] && longest=$took
  resets=$((resets + 1))
  sleep 1
done
note resets $resets
note longest_until_ready_hundredths $longest
check "the controller is ready within a second of a reset" test $longest -lt 100
host during
check "the discard comes to its end" wait $work
note discard_hundredths $(( $(hundredths) - begin ))
check "the file has no room on the host's disk left" host discarded
check "the drive is the same" test "$(cat /sys/block/$disk/size)" = $SECTORS
check "what is written reads" sh -c "head -c 1048576 /dev/urandom > /tmp/data && dd if=/tmp/data of=/dev/$disk bs=64k oflag=direct && dd if=/dev/$disk bs=64k count=16 iflag=direct | cmp - /tmp/data"
dmesg | grep -i nvme | tail -n 20
check "no command timed out" sh -c "! dmesg | grep -iE 'nvme.*(timeout|abort|not ready|Removing)'"
exit 0
"""


def fragment(path, size):
    """Every other 4 KiB has data."""
    data = b"\x5a" * STEP
    with open(path, "wb") as file:
        file.truncate(size)
        for offset in range(0, size, 2 * STEP):
            os.pwrite(file.fileno(), data, offset)
            if offset % BATCH == 0:
                print("  %d of %d MiB of the image are written" % (offset >> 20, size >> 20), flush=True)
        os.fsync(file.fileno())


class Disk:
    """The image, and how long commands of another drive take meanwhile."""

    def __init__(self, path, daemon, latency):
        self.path, self.daemon, self.latency = path, daemon, latency
        self.whole = self.stored()

    def stored(self):
        return os.stat(self.path).st_blocks * 512

    def begun(self):
        limit = time.monotonic() + 30
        while self.stored() == self.whole:
            if time.monotonic() > limit:
                raise guest.GuestError("nothing of the image is discarded")
            time.sleep(0.01)
        return ""

    def discarded(self):
        left = self.stored()
        if left > 64 * STEP:
            raise guest.GuestError("%d bytes are left of %d" % (left, self.whole))
        return ""

    def measure(self, when):
        """Reads of the other drive, one at a time."""
        if self.latency:
            done = subprocess.run([sluice.BINARY, "bench", "--connect", self.daemon.socket("other"), "--queue-depth", "1", "--rate", "2000",
                                   "--time", "2", "--runs", "3"], capture_output=True, text=True, timeout=120)
            print("  another drive, %s: %s" % (when, (done.stdout or done.stderr).strip()), flush=True)
        return ""


def discard(report, folder, kernel, gib, latency):
    # Memory has no extents, and less room.
    with tempfile.TemporaryDirectory(prefix="discard-", dir=os.path.join(guest.ROOT, "target")) as on_disk:
        discard_of(report, folder, kernel, gib, latency, os.path.join(on_disk, "disk.img"))


def discard_of(report, folder, kernel, gib, latency, path):
    size = gib << 30
    fragment(path, size)
    drives = {"disk": [sluice.Namespace("file", "%dGiB" % gib, path=path)],
              "other": [sluice.Namespace("memory", "64MiB")]}
    with sluice.Daemon(folder, drives) as daemon:
        disk = Disk(path, daemon, latency)
        steps = {"begun": disk.begun, "discarded": disk.discarded,
                 "before": lambda: disk.measure("before"), "during": lambda: disk.measure("during")}
        run = guest.Guest(kernel, "SECTORS=%d\n%s" % (size // 512, SCRIPT), timeout_s=BOOT_S + gib * SECONDS_OF_A_GIB,
                          steps=steps, sockets=[daemon.socket("disk")])
        report.booted(run, "Linux %s" % kernel, daemon)


def run(report, kernels=("6.12",), gib=GIB, latency=False):
    for kernel in kernels:
        report.theme("discard of a fragmented image of %d GiB: Linux %s" % (gib, kernel))
        report.scratch("discard", discard, kernel, gib, latency)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run, gib={"type": int, "default": GIB},
                        latency={"action": "store_true"}))
