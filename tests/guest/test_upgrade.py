#!/usr/bin/env python3
"""Upgrades of the daemon under a guest's load: the guest sees a pause of milliseconds and nothing else. The guest has the
drive as a device, and then as the kernel's own NVMe/TCP host.

  test_upgrade.py [--kernels 6.1 6.12 7.3] [--upgrades 100] [--other PATH]

With --other, the daemon is of that build at first, and each second upgrade goes back to it.

The guest verifies what it has written at random and in synced writes, and repeats that until the upgrades are over. Its
longest commands have the longest pauses.
"""

import os
import time

import guest
import sluice
import test_tcp
from report import by_kernels

UPGRADES = 10
BETWEEN_S = 0.5
NQN = "nqn.2024-01.org.example:a"

VERIFIED = """
verified="fio --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal --loops=1000 --time_based --runtime=$SECONDS_OF_LOAD"
LATENCY="--write_lat_log=/tmp/direct --log_avg_msec=500 --log_max_value=1"
note_longest() {
  note longest "the longest commands in $(wc -l < /tmp/direct_clat.1.log) half seconds: ... $(cut -d, -f 2 /tmp/direct_clat.1.log | sort -n | tail -n 5 | tr '\\n' ' ')ns"
}
ends() { wait $1 || { cat $2; return 1; }; }
"""

NETWORK = """
connected() { [ "$(cat /sys/class/nvme/$1/state)" = live ] && [ "$(dmesg | grep -c "new ctrl")" = 2 ]; }
a=$(connect $NQN ,nr_io_queues=2) || { dmesg | tail -n 20; fail "connect"; exit 1; }
b=$(HOST=${HOST%555555555555}666666666666; connect $NQN ,nr_io_queues=2,hdr_digest,data_digest,duplicate_connect) || { fail "connect with digests"; exit 1; }
within 10 disk_of $a 1 131072 > /dev/null; n=$(disk_of $a 1 131072) || { dmesg | tail -n 20; fail "a disk"; exit 1; }
$verified --filename=/dev/$n --direct=1 --name=direct --bs=4k --rw=randwrite --iodepth=32 --size=8m --rate_iops=1000 $LATENCY > /tmp/direct 2>&1 &
direct=$!
sleep 2
check "host $CHANGE again and again" host changes
check "direct I/O saw no error, and every byte is right" ends $direct /tmp/direct
note_longest
head -c 4096 /dev/urandom > /tmp/written
check "data goes by way of both" shared $a $b
for c in $a $b; do check "$c was never disconnected" connected $c; done
check "a new namespace size arrives" host grow
within 10 disk_of $a 1 262144 > /dev/null || fail "the host sees the new size"
for c in $a $b; do check "disconnect $c" disconnect $c; done
check "no complaint in the kernel log" quiet_log 'timeout|I/O [Ee]rror|aborting|resetting|[Rr]econnect'
exit 0
"""

# With CHANGE, what is done to the daemon. With CHANGE_AT_START, also while the guest starts.
SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { dmesg | grep -i nvme | tail -n 20; fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
[ -z "$CHANGE_AT_START" ] || check "host $CHANGE while the guest started" host started
echo 5 > /sys/module/nvme_core/parameters/io_timeout  # a lost command is noticed soon
mkfs.ext4 -q /dev/$N && mkdir -p /mnt/a && mount -t ext4 /dev/$N /mnt/a
$verified --filename=/mnt/a/file --direct=1 --name=direct --bs=4k --rw=randwrite --iodepth=32 --size=8m --rate_iops=2000 $LATENCY > /tmp/direct 2>&1 &
direct=$!
$verified --filename=/mnt/a/synced --name=synced --bs=4k --rw=write --fsync=1 --size=1m --rate_iops=100 > /tmp/synced 2>&1 &
synced=$!
sleep 2
check "host $CHANGE again and again" host changes
check "direct I/O saw no error, and every byte is right" ends $direct /tmp/direct
check "neither did synced writes" ends $synced /tmp/synced
note_longest
check "a new namespace size arrives" host grow
sized() { [ "$(cat /sys/block/$N/size)" = 262144 ]; }
within 10 sized || fail "the guest sees the new size"
check "umount" umount /mnt/a
check "e2fsck" e2fsck -fn /dev/$N
check "no complaint in the kernel log" quiet_log 'timeout|I/O [Ee]rror|aborting|resetting|Remounting|completed QID|invalid id'
exit 0
"""


def upgraded(daemon, upgrades):
    """Steps of a guest, and the time of its load in seconds. The builds take turns."""
    def again_and_again():
        for number in range(upgrades):
            build = daemon.binary if number % 2 else sluice.BINARY
            daemon.upgrade(*() if daemon.binary == sluice.BINARY else ("--binary", build))
            time.sleep(BETWEEN_S)

    return {"changes": again_and_again, "grow": lambda: daemon.resize("a", 1, "128MiB")}, int(upgrades * 2 * BETWEEN_S + 10)


def boot(report, folder, kernel, upgrades, over, other):
    image, port = os.path.join(folder, "disk.img"), test_tcp.free_port()
    drives, tcp = {"a": [sluice.Namespace("file", "64MiB", 512, image)]}, {"a": NQN} if over == "tcp" else {}
    with sluice.Daemon(folder, drives, tcp=tcp, port=port, binary=other) as daemon:
        steps, seconds = upgraded(daemon, upgrades)
        words = "CHANGE='upgrades the daemon'\nSECONDS_OF_LOAD=%d\nPORT=%d\nNQN=%s\n" % (seconds, port, NQN) + VERIFIED
        script = test_tcp.SCRIPT + words + NETWORK if over == "tcp" else words + SCRIPT
        arguments = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="] if over == "tcp" else []
        run = guest.Guest(kernel, script, daemon.sockets(), timeout_s=2 * seconds + 120, steps=steps, qemu_args=arguments)
        report.guest(run, "upgrade over %s" % over)
        report.say(run.notes.get("longest", "no figures"))
        report.ended(daemon, "upgrade over %s: " % over)


def run(report, kernels=("6.12",), upgrades=UPGRADES, other=sluice.BINARY):
    for kernel in kernels:
        for over in ("pcie", "tcp"):
            report.theme("%d upgrades of the daemon, Linux %s over %s" % (upgrades, kernel, over))
            report.scratch("upgrade over %s" % over, boot, kernel, upgrades, over, other)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, upgrades={"type": int, "default": UPGRADES},
                               other={"default": sluice.BINARY}))
