#!/usr/bin/env python3
"""What a monitor does behind the daemon's back, under verified I/O: memory is ballooned, reported as free, plugged and
unplugged; and a machine with the image that `drive attach` names is not migrated, saved or restored.

  test_monitor.py [--kernels 6.12]
"""

import os
import subprocess
import sys
import time

import guest
import qmp
import sluice
from report import by_kernels

TIMEOUT_S = 400
PATIENCE_S = 60
MEMORY_MIB, MORE_MIB, LESS_MIB = 1024, 256, 512

SCRIPT = """
modprobe virtio_balloon
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
# What is plugged can be unplugged again, and buffers of commands are not there.
echo online_movable > /sys/devices/system/memory/auto_online_blocks
verified="fio --filename=/dev/$N --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --minimal"
touch /tmp/going
{ while [ -e /tmp/going ]; do
    $verified --name=small --bs=4k --rw=randrw --iodepth=16 --size=4m &&
    $verified --name=large --bs=128k --rw=randwrite --do_verify=1 --iodepth=4 --offset=32m --size=8m || exit 1
  done > /tmp/load.out 2>&1; } & loading=$!
total() { awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo; }
more() { [ $(total) -gt $((was + 200)) ]; }
as_before() { [ $(total) -lt $((was + 100)) ]; }
for round in 1 2; do
  check "memory is ballooned" host balloon less
  check "and given back" host balloon all
  was=$(total)
  check "memory is plugged" host plug
  check "it is there" within 20 more
  sleep 2
  check "it is unplugged" host unplug
  check "it is gone" within 30 as_before
done
check "the machine is not migrated" host refuses migrate
check "nor saved" host refuses savevm
check "nor restored" host refuses loadvm
check "nor is a snapshot taken of it" host refuses snapshot
rm /tmp/going
if wait $loading; then pass "verified I/O goes on"; else tail -n 20 /tmp/load.out; fail "verified I/O goes on"; fi
check "no complaint in the kernel log" quiet_log 'timeout|I/O error'
exit 0
"""


class Machine:
    """A machine from its monitor."""

    def __init__(self, folder, arguments):
        self.folder, self.arguments = folder, arguments
        self.monitor = qmp.Monitor(os.path.join(folder, "monitor"))
        self.image = os.path.join(folder, "stay.qcow")
        self.plugged = 0

    def qemu_args(self):
        qemu_img = os.path.join(os.path.dirname(guest.qemu()), "qemu-img")
        subprocess.run([qemu_img, "create", "-q", "-f", "qcow", self.image, "1M"], check=True)
        blocker = self.arguments["refuse_migration"]
        # The last -m counts.
        return [word.replace("stay.qcow", self.image) for word in blocker] + [
            "-m", "%dM,slots=4,maxmem=4G" % MEMORY_MIB,
            "-device", "virtio-balloon-pci,id=balloon,free-page-reporting=on,disable-legacy=on",
        ] + self.monitor.qemu_args()

    def _until(self, what, is_so):
        limit = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > limit:
                raise guest.GuestError(what)
            time.sleep(0.2)

    def balloon(self, size):
        wanted = (LESS_MIB if size == "less" else MEMORY_MIB) << 20
        self.monitor.execute("balloon", value=wanted)
        actual = lambda: self.monitor.execute("query-balloon")["actual"]
        self._until("the balloon is as it was", lambda: abs(actual() - wanted) < 16 << 20)

    def plug(self):
        self.plugged += 1
        memory = "more%d" % self.plugged
        self.monitor.execute("object-add", **{"qom-type": "memory-backend-memfd", "id": memory,
                                              "size": MORE_MIB << 20, "share": True})
        self.monitor.execute("device_add", driver="pc-dimm", id="dimm%d" % self.plugged, memdev=memory)

    def unplug(self):
        name = "dimm%d" % self.plugged
        self.monitor.execute("device_del", id=name)
        has = lambda: any(it["data"].get("id") == name for it in self.monitor.execute("query-memory-devices"))
        self._until("the memory stays", lambda: not has())
        self.monitor.execute("object-del", id="more%d" % self.plugged)

    def refuses(self, what):
        """True if it says why not."""
        if what == "migrate":
            try:
                self.monitor.execute("migrate", uri="exec:cat > /dev/null")
            except guest.GuestError as error:
                answer = str(error)
            else:
                raise guest.GuestError("it is migrated")
        elif what == "snapshot":
            self.monitor.execute("snapshot-save", **{"job-id": "job", "tag": "x", "vmstate": "stay", "devices": ["stay"]})
            job = lambda: next(it for it in self.monitor.execute("query-jobs") if it["id"] == "job")
            self._until("the job does not end", lambda: job()["status"] == "concluded")
            answer = job().get("error", "")
        else:
            answer = self.monitor.execute("human-monitor-command", **{"command-line": what + " x"})
            self.monitor.execute("cont")  # QEMU has stopped the machine for a loadvm, and leaves it so
        if "does not support" not in answer:
            raise guest.GuestError("%s: %s" % (what, answer or "it is done"))


def boot(report, folder, kernel):
    with sluice.Daemon(folder, {"disk": [sluice.Namespace("memory", "64MiB")]}) as daemon:
        machine = Machine(folder, daemon.attach_json("disk"))
        steps = {verb: getattr(machine, verb) for verb in ("balloon", "plug", "unplug", "refuses")}
        run = guest.Guest(kernel, SCRIPT, sockets=daemon.sockets(), memory_mib=MEMORY_MIB, timeout_s=TIMEOUT_S,
                          steps=steps, qemu_args=machine.qemu_args())
        report.booted(run, "Linux %s" % kernel, daemon)


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        report.theme("monitor: Linux %s" % kernel)
        report.scratch("monitor", boot, kernel)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run))
