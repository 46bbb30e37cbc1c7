#!/usr/bin/env python3
"""A drive whose storage goes away under load, and comes back, or is replaced: the guest sees a pause and nothing else.

  test_absence.py [--kernels 6.1 6.12 7.3] [--seconds 600]

The drive is on one of another daemon, over NVMe/TCP. That daemon is killed and started again later than the guest's time-out
for I/O. Without an answer before that time, the guest aborts its commands, resets the controller, and fails its I/O.

Then the daemon is killed for good. The target is paused, its image copied, and a third daemon with the copy put in its place.
"""

import os
import shutil
import time

import guest
import sluice
import test_tcp
from report import by_kernels

SECONDS = 60  # longer than the 30 s of Linux
LOST_S = 35  # before the lost target is replaced
MARGIN_S = 600  # the last delays of the guest, and its load
NQN = "nqn.2024-01.org.example:far"
COPY = "nqn.2024-01.org.example:copy"

SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
note patience "$(cat /sys/module/nvme_core/parameters/io_timeout) s, $(cat /sys/module/nvme_core/parameters/max_retries) retries"
mkfs.ext4 -q /dev/$N && mkdir -p /mnt/a && mount -t ext4 /dev/$N /mnt/a
verified="fio --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal"
begin() {
  $verified --filename=/mnt/a/$1 --direct=1 --name=direct --bs=4k --rw=randwrite --iodepth=16 --size=8m --rate_iops=300 > /tmp/direct 2>&1 &
  direct=$!
  $verified --filename=/mnt/a/$1-synced --name=synced --bs=4k --rw=write --fsync=8 --size=2m --rate_iops=50 > /tmp/synced 2>&1 &
  synced=$!
  sleep 2
}
ends() { wait $1 || { cat $2; return 1; }; }
echo 0 > /proc/sys/kernel/hung_task_timeout_secs  # it reports what waits, which is no error
identity() { cat /sys/block/$N/wwid /sys/block/$N/nguid /sys/block/$N/size; }
identity > /tmp/before
seconds() { cut -d. -f1 /proc/uptime; }
begin away
since=$(seconds)
check "host kills the other daemon, and starts it $AWAY s later" host absence
# A guest that is emulated on a busy machine may take its own clock for a slower one, and give up early.
check "the guest's clock is the host's" [ $(($(seconds) - since)) -lt $((AWAY * 5 / 4 + 15)) ]
check "direct I/O saw no error, and every byte is right" ends $direct /tmp/direct
check "neither did fsync" ends $synced /tmp/synced
begin lost
check "host kills the other daemon, and puts a copy in its place" host loss
check "direct I/O saw no error there, and every byte is right" ends $direct /tmp/direct
check "neither did fsync there" ends $synced /tmp/synced
check "the file system can still be written to" touch /mnt/a/after
identity > /tmp/after
check "the namespace has the same identifiers and size" cmp /tmp/before /tmp/after
echo 255 > /sys/module/nvme_core/parameters/max_retries  # as contrib/90-sluice-guest.rules does
check "the limit of retries can be set" [ "$(cat /sys/module/nvme_core/parameters/max_retries)" = 255 ]
check "umount" umount /mnt/a
check "e2fsck" e2fsck -fn /dev/$N
# Linux does not repeat a read-ahead, which nothing waits for: it may be logged, and the block is read again.
seen() { dmesg | grep -v -e 'Cmd(0x2).*sc 0x21' -e '(READ) flags 0x8'; }
clean() { ! seen | faults 'timeout|[Ee]rror.*nvme|I/O [Ee]rror|aborting|resetting|Remounting' | grep .; }
check "no complaint in the kernel log" clean
exit 0
"""


class Remote:
    """A namespace on a drive elsewhere."""

    def __init__(self, port):
        self.port = port

    def toml(self):
        return ["[[drive.namespace]]", 'target = "nvme-tcp"',
                'nvme_tcp = { address = "127.0.0.1:%d", subnqn = "%s", ctrl_loss_s = 0, keep_alive_s = 5 }' % (self.port, NQN)]


def boot(report, folder, kernel, seconds):
    ports = [test_tcp.free_port() for _ in range(2)]
    folders = [os.path.join(folder, name) for name in ("far", "near", "copy")]
    for name in folders:
        os.mkdir(name)
    images = [os.path.join(folder, name + ".img") for name in ("far", "copy")]
    far, copy = (sluice.Daemon(place, {"far": [sluice.Namespace("file", "64MiB", 512, image)]}, tcp={"far": nqn}, port=port)
                 for place, image, nqn, port in zip((folders[0], folders[2]), images, (NQN, COPY), ports))

    def absence():
        far.kill()
        time.sleep(seconds)
        far.start()

    def loss():
        far.kill()
        time.sleep(LOST_S)
        daemon.command("target", "pause", "a")
        shutil.copyfile(images[0], images[1])
        copy.start()
        daemon.command("target", "replace", "a", "--nvme-tcp", "127.0.0.1:%d" % ports[1], "--subnqn", COPY, "--different-storage")

    steps = {"absence": absence, "loss": loss}
    with far, sluice.Daemon(folders[1], {"a": [Remote(ports[0])]}) as daemon:
        script = "AWAY=%d\n" % seconds + SCRIPT
        limit = 2 * seconds + LOST_S + MARGIN_S
        try:
            report.guest(guest.Guest(kernel, script, daemon.sockets(), timeout_s=limit, steps=steps), "absence")
            places = daemon.command("target", "list", "a")
            report.check("absence: the drive is on the copy", COPY in places and "ready" in places, places)
            # The daemon reports the loss of its target.
            report.ended(daemon, "absence: ", expected=("NVMe/TCP",))
        finally:
            copy.stop()


def run(report, kernels=("6.12",), seconds=SECONDS):
    for kernel in kernels:
        report.theme("storage that is away for %d s, Linux %s" % (seconds, kernel))
        report.scratch("absence", boot, kernel, seconds)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, seconds={"type": int, "default": SECONDS}))
