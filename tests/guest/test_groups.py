#!/usr/bin/env python3
"""Queue groups of a drive go from reactor to reactor while a stock kernel verifies what it wrote; a monitor leaves them where
they are, a feature that is set and a reset bring them home.

  test_groups.py [--kernel 6.12]
"""

import json
import os
import sys
import tempfile

import guest
import sluice
from report import by_kernel

TIMEOUT_S = 240
MOVES = 200
TRIES = 20
SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1); C=$(controller_of $A)
check "each processor has a queue" [ "$(ls /sys/block/$N/mq | wc -l)" = 2 ]
load() {
  while [ ! -e /tmp/enough ]; do
    fio --filename=/dev/$N --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --bs=4k --rw=randrw --iodepth=8 \\
      --size=8m --minimal --name=a --cpus_allowed=0 --offset=0 --name=b --cpus_allowed=1 --offset=32m || return 1
    echo >> /tmp/rounds
  done
}
load > /tmp/load.out 2>&1 &
load=$!
sleep 1
check "host moves queues under load" host move
check "host has one elsewhere" host away
for n in $(seq 10); do
  nvme smart-log /dev/$C && nvme error-log /dev/$C && nvme id-ctrl /dev/$C && nvme get-feature /dev/$C -f 4 || echo $n >> /tmp/unread
done > /dev/null 2>&1
check "a monitor reads what it likes to know" [ ! -e /tmp/unread ]
check "host finds one elsewhere after that" host away
check "a feature is set" nvme set-feature /dev/$C -f 4 -V 0x157
check "host finds all queues at home" host home
check "host moves queues again" host move
check "the controller is reset" nvme reset /dev/$C
check "host finds all queues at home after it" host home
check "host moves queues once more" host move
touch /tmp/enough
if wait $load; then pass "all that was read is what was written"; else tail -n 20 /tmp/load.out; fail "all that was read is what was written"; fi
echo "$(wc -l < /tmp/rounds) rounds of the load"
check "each processor's interrupts came" [ "$(awk -v n=$C '$0 ~ n "q[12]$" && $2 + $3 > 500' /proc/interrupts | wc -l)" = 2 ]
check "no complaint in the kernel log" quiet_log 'timeout|I/O error'
exit 0
"""


class Drive:
    """The drive `disk`, for the guest's steps."""

    def __init__(self, daemon):
        self.daemon = daemon

    def remote_queues(self):
        return json.loads(self.daemon.command("drive", "show", "disk", "-o", "json")).get("remote_queues", [])

    def move(self):
        """Each of the two queues to the other reactor and back, by turns; the last stay there."""
        for number in range(MOVES + 2):
            queue, reactor = 1 + number % 2, 1 - number // 2 % 2
            self.move_one(str(queue), str(reactor))

    def move_one(self, queue, reactor, tries=TRIES):
        """A queue whose commands are slow for a moment stays, and says so."""
        try:
            self.daemon.command("drive", "move", "disk", "--queue", queue, "--reactor", reactor)
        except guest.GuestError as error:
            if tries == 0 or "did not end in time" not in str(error):
                raise
            self.move_one(queue, reactor, tries - 1)

    def away(self):
        if not self.remote_queues():
            raise guest.GuestError("all are at home")

    def home(self):
        if self.remote_queues():
            raise guest.GuestError("some are remote: %s" % self.remote_queues())


def run(report, kernel="6.12"):
    report.theme("queue groups that move: Linux %s" % kernel)
    report.scratch("queue groups that move", groups, kernel)


def groups(report, folder, kernel):
    # On a disk: what is in memory goes through the page cache, and so stays on one reactor.
    disk = tempfile.TemporaryDirectory(prefix="sluice-")
    namespace = sluice.Namespace("file", "64MiB", path=os.path.join(disk.name, "disk.img"))
    with disk, sluice.Daemon(folder, {"disk": [namespace]}, cores=(0, 1)) as daemon:
        drive = Drive(daemon)
        steps = {verb: getattr(drive, verb) for verb in ("move", "away", "home")}
        report.booted(guest.Guest(kernel, SCRIPT, daemon.sockets(), timeout_s=TIMEOUT_S, steps=steps), kernel, daemon)


if __name__ == "__main__":
    sys.exit(by_kernel(__doc__, run))
