#!/usr/bin/env python3
"""A drive is plugged into a running guest, used, and unplugged under I/O, again and again, through QEMU's monitor.

  test_hotplug.py [--kernels 6.12] [--rounds 20]

The drive has no MSI-X: with it, QEMU up to 11.1 aborts when a vfio-user device goes (docs/howto/attach-to-qemu.md).
"""

import os
import sys
import time

import guest
import qmp
import sluice
from report import by_kernels

TIMEOUT_S = 900
PATIENCE_S = 15
ROUNDS = 3
PORT = "slot0"

# The port has a bus of its own, and the drive is the only device there.
SCRIPT = """
drive() { ls /sys/block | grep '^nvme' | head -n 1; }
is_there() { [ -n "$(drive)" ] && [ "$(cat /sys/block/$(drive)/size)" = 131072 ]; }
is_gone() { [ -z "$(drive)" ]; }
head -c 4194304 /dev/urandom > /tmp/data
same() { dd if=/dev/$N bs=1M count=4 iflag=direct 2>/dev/null | cmp - /tmp/data; }
round=0
while [ $round -lt $ROUNDS ]; do
  round=$((round + 1))
  check "round $round: it is plugged" host plug
  within 30 is_there || { fail "round $round: it appears"; dmesg | tail -n 20; exit 1; }
  N=$(drive)
  [ $round = 1 ] || check "round $round: what was written is there" same
  check "round $round: it is written" dd if=/tmp/data of=/dev/$N bs=1M oflag=direct
  check "round $round: and reads" same
  # Somebody is at work with it when it goes, who gets errors and nothing else.
  dd if=/dev/$N of=/dev/null bs=64k count=100000 iflag=direct 2>/dev/null & reader=$!
  check "round $round: it is unplugged" host unplug
  within 30 is_gone || { fail "round $round: it goes"; dmesg | tail -n 20; exit 1; }
  wait $reader
done
check "QEMU is well" host status
exit 0
"""


class Slot:
    """A port of the machine, and the drive that is in it or not."""

    def __init__(self, monitor, daemon):
        self.monitor, self.daemon = monitor, daemon

    def qemu_args(self):
        return ["-device", "pcie-root-port,id=%s,chassis=1,slot=1" % PORT] + self.monitor.qemu_args()

    def plug(self):
        """The port is free a moment after the guest has let go of the drive."""
        limit = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.daemon.command("drive", "attach", "disk", "--qmp", self.monitor.path, "--bus", PORT)
                return
            except guest.GuestError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.2)

    def unplug(self):
        """The guest is asked to let go of it, which it does in some seconds; then it can be plugged again."""
        self.daemon.command("drive", "detach", "disk", "--qmp", self.monitor.path)

    def status(self):
        return self.monitor.execute("query-status")["status"]


def boot(report, folder, kernel, rounds):
    more = {"disk": ["[drive.vfio_user]", "msix = false"]}
    with sluice.Daemon(folder, {"disk": [sluice.Namespace("memory", "64MiB")]}, more=more) as daemon:
        slot = Slot(qmp.Monitor(os.path.join(folder, "monitor")), daemon)
        steps = {verb: getattr(slot, verb) for verb in ("plug", "unplug", "status")}
        run = guest.Guest(kernel, "ROUNDS=%d\n%s" % (rounds, SCRIPT), timeout_s=TIMEOUT_S, steps=steps,
                          qemu_args=slot.qemu_args())
        report.booted(run, "Linux %s" % kernel, daemon)


def run(report, kernels=("6.12",), rounds=ROUNDS):
    for kernel in kernels:
        report.theme("hot plug: Linux %s, %d rounds" % (kernel, rounds))
        report.scratch("hot plug", boot, kernel, rounds)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run, rounds={"type": int, "default": ROUNDS}))
