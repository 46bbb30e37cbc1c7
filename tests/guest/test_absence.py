#!/usr/bin/env python3
"""A drive whose storage goes away under load, and comes back: the guest sees a pause and nothing else.

  test_absence.py [--kernels 6.1 6.12 7.3] [--seconds 600]

The drive is on one of another daemon, over NVMe/TCP. That daemon is killed and started again later than the guest's time-out
for I/O. Without an answer before that time, the guest aborts its commands, resets the controller, and fails its I/O.
"""

import os
import time

import guest
import sluice
import test_tcp
from report import by_kernels

SECONDS = 45  # longer than the 30 s of Linux
MARGIN_S = 260  # the last delay of the guest, and its load
NQN = "nqn.2024-01.org.example:far"

SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
note patience "$(cat /sys/module/nvme_core/parameters/io_timeout) s, $(cat /sys/module/nvme_core/parameters/max_retries) retries"
mkfs.ext4 -q /dev/$N && mkdir -p /mnt/a && mount -t ext4 /dev/$N /mnt/a
verified="fio --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal"
$verified --filename=/mnt/a/file --direct=1 --name=direct --bs=4k --rw=randwrite --iodepth=16 --size=8m --rate_iops=300 > /tmp/direct 2>&1 &
direct=$!
$verified --filename=/mnt/a/synced --name=synced --bs=4k --rw=write --fsync=8 --size=2m --rate_iops=50 > /tmp/synced 2>&1 &
synced=$!
echo 0 > /proc/sys/kernel/hung_task_timeout_secs  # it reports what waits, which is no error
sleep 2
check "host kills the other daemon, and starts it $AWAY s later" host absence
ends() { wait $1 || { cat $2; return 1; }; }
check "direct I/O saw no error, and every byte is right" ends $direct /tmp/direct
check "neither did fsync" ends $synced /tmp/synced
check "the file system can still be written to" touch /mnt/a/after
check "umount" umount /mnt/a
check "e2fsck" e2fsck -fn /dev/$N
check "no complaint in the kernel log" quiet_log 'timeout|I/O [Ee]rror|aborting|resetting|Remounting'
exit 0
"""


class Remote:
    """A namespace on a drive elsewhere."""

    def __init__(self, port):
        self.port = port

    def toml(self):
        return ["[[drive.namespace]]", 'target = "nvme-tcp"',
                'nvme_tcp = { address = "127.0.0.1:%d", subnqn = "%s", ctrl_loss_s = 0 }' % (self.port, NQN)]


def boot(report, folder, kernel, seconds):
    port = test_tcp.free_port()
    folders = [os.path.join(folder, name) for name in ("far", "near")]
    for name in folders:
        os.mkdir(name)
    image = os.path.join(folder, "far.img")
    far = sluice.Daemon(folders[0], {"far": [sluice.Namespace("file", "64MiB", 512, image)]}, tcp={"far": NQN}, port=port)

    def absence():
        far.kill()
        time.sleep(seconds)
        far.start()

    with far, sluice.Daemon(folders[1], {"a": [Remote(port)]}) as daemon:
        script = "AWAY=%d\n" % seconds + SCRIPT
        limit = 2 * seconds + MARGIN_S
        report.guest(guest.Guest(kernel, script, daemon.sockets(), timeout_s=limit, steps={"absence": absence}), "absence")
        report.ended(daemon, "absence: ")


def run(report, kernels=("6.12",), seconds=SECONDS):
    for kernel in kernels:
        report.theme("storage that is away for %d s, Linux %s" % (seconds, kernel))
        report.scratch("absence", boot, kernel, seconds)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, seconds={"type": int, "default": SECONDS}))
