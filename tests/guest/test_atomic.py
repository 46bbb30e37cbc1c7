#!/usr/bin/env python3
"""Atomic writes of a guest: Linux takes the limit of a drive with `atomic`, and fio writes with RWF_ATOMIC while the daemon is killed
again and again beside a holder.

  test_atomic.py [--kernels 6.12] [--deaths 10]

RWF_ATOMIC comes with Linux 6.11. fio verifies blocks of 16 KiB: one of two writes fails the check of its sum.
"""

import os
import time

import guest
import sluice
from report import by_kernels

DEATHS = 10
BETWEEN_S = 0.5
LIMIT = 64 << 10
FUNCTION = ('functions = [ { kind = "uif", function = "atomic", place = "daemon", options = { limit = "64KiB" }, '
            'layers = [ { target = "file", path = "%s", size = "4MiB" } ] } ]')

SCRIPT = """
within 15 namespace_of 0000:00:04.0 1 > /dev/null || { dmesg | grep -i nvme | tail -n 20; fail "the drive appears"; exit 1; }
disk=$(namespace_of 0000:00:04.0 1)
limit() { cat /sys/block/$disk/queue/$1; }
for name in atomic_write_unit_max_bytes atomic_write_max_bytes; do check "$name is the limit" test "$(limit $name)" = $LIMIT; done
check "there is no boundary" test "$(limit atomic_write_boundary_bytes)" = 0
atomic="fio --name=atomic --filename=/dev/$disk --direct=1 --ioengine=io_uring --atomic=1 --minimal"
check "a write over the limit is no atomic one" sh -c "! $atomic --rw=write --bs=128k --size=1m > /tmp/over 2>&1"
$atomic --rw=randwrite --bs=16k --size=8m --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --loops=1000 --time_based --runtime=$SECONDS_OF_LOAD > /tmp/fio 2>&1 &
load=$!
sleep 2
check "the daemon is killed again and again" host deaths
ends() { wait $load || { cat /tmp/fio; return 1; }; }
check "every block is a whole write" ends
exit 0
"""


def atomic(report, folder, kernel, deaths):
    image, log = (os.path.join(folder, name) for name in ("disk.img", "log.img"))
    namespace = sluice.Namespace("file", "64MiB", 512, image, more=[FUNCTION % log])
    daemon = sluice.Daemon(folder, {"a": [namespace]}, holder=True)

    def die():
        for _ in range(deaths):
            daemon.kill()
            daemon.start()
            time.sleep(BETWEEN_S)

    with sluice.Holder(folder), daemon:
        seconds = int(deaths * (BETWEEN_S + 0.5) + 10)
        script = "LIMIT=%d\nSECONDS_OF_LOAD=%d\n%s" % (LIMIT, seconds, SCRIPT)
        run = guest.Guest(kernel, script, daemon.sockets(), timeout_s=4 * seconds + 120, steps={"deaths": die})
        report.guest(run, "atomic writes")
        report.ended(daemon, "atomic writes: ")


def run(report, kernels=("6.12",), deaths=DEATHS):
    for kernel in kernels:
        report.theme("atomic writes and %d deaths of the daemon: Linux %s" % (deaths, kernel))
        report.scratch("atomic writes", atomic, kernel, deaths)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, deaths={"type": int, "default": DEATHS}))
