#!/usr/bin/env python3
"""Deaths of the daemon under a guest's load, beside a holder: the guest sees a pause and nothing else. It is the same QEMU all
the time. The first deaths come while the guest's firmware and driver start.

  test_holder.py [--kernels 6.1 6.12 7.3] [--deaths 200] [--at_start 12]
"""

import os
import threading
import time

import guest
import sluice
from report import by_kernels

DEATHS = 20
DEATHS_AT_START = 12
BETWEEN_S = 0.3

SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { dmesg | grep -i nvme | tail -n 20; fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
check "host has killed the daemon while the guest started" host started
echo 5 > /sys/module/nvme_core/parameters/io_timeout  # a lost command is noticed soon
mkfs.ext4 -q /dev/$N && mkdir -p /mnt/a && mount -t ext4 /dev/$N /mnt/a
$verified --filename=/mnt/a/file --direct=1 --name=direct --bs=4k --rw=randwrite --iodepth=32 --size=8m --rate_iops=2000 > /tmp/direct 2>&1 &
direct=$!
$verified --filename=/mnt/a/synced --name=synced --bs=4k --rw=write --fsync=1 --size=1m --rate_iops=100 > /tmp/synced 2>&1 &
synced=$!
sleep 2
check "host kills the daemon again and again" host deaths
check "direct I/O saw no error, and every byte is right" ends $direct /tmp/direct
check "neither did synced writes" ends $synced /tmp/synced
note pause "the longest command took $(cut -d';' -f 39 /tmp/direct | tail -1) us to read, $(cut -d';' -f 80 /tmp/direct | tail -1) us to write"
check "a new namespace size arrives" host grow
sized() { [ "$(cat /sys/block/$N/size)" = 262144 ]; }
within 10 sized || fail "the guest sees the new size"
check "umount" umount /mnt/a
check "e2fsck" e2fsck -fn /dev/$N
check "no complaint in the kernel log" quiet_log 'timeout|I/O [Ee]rror|aborting|resetting|Remounting|completed QID|invalid id'
exit 0
"""

VERIFIED = """
verified="fio --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal --loops=1000 --time_based --runtime=$SECONDS_OF_LOAD"
ends() { wait $1 || { cat $2; return 1; }; }
"""


def die(daemon, times):
    for _ in range(times):
        daemon.kill()
        daemon.start()
        time.sleep(BETWEEN_S)


def boot(report, folder, kernel, deaths, at_start):
    image = os.path.join(folder, "disk.img")
    daemon = sluice.Daemon(folder, {"a": [sluice.Namespace("file", "64MiB", 512, image)]}, holder=True)
    with sluice.Holder(folder), daemon:
        started, over = threading.Event(), threading.Event()

        def start():
            die(daemon, at_start)
            started.set()
            over.wait()  # a daemon ends with the thread that has started it: see guest.die_with_parent

        starting = threading.Thread(target=start)
        seconds = int(deaths * (BETWEEN_S + 0.5) + 10)
        steps = {
            "started": started.wait,
            "deaths": lambda: die(daemon, deaths),
            "grow": lambda: daemon.resize("a", 1, "128MiB"),
        }
        script = "SECONDS_OF_LOAD=%d\n" % seconds + VERIFIED + SCRIPT
        run = guest.Guest(kernel, script, daemon.sockets(), timeout_s=2 * seconds + 120, steps=steps)
        starting.start()
        try:
            report.guest(run, "deaths of the daemon")
            report.ended(daemon, "deaths of the daemon: ")
        finally:
            over.set()
            starting.join()


def run(report, kernels=("6.12",), deaths=DEATHS, at_start=DEATHS_AT_START):
    for kernel in kernels:
        report.theme("%d deaths of the daemon, Linux %s" % (at_start + deaths, kernel))
        report.scratch("deaths of the daemon", boot, kernel, deaths, at_start)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, deaths={"type": int, "default": DEATHS},
                                at_start={"type": int, "default": DEATHS_AT_START}))
