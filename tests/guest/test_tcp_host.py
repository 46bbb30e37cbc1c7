#!/usr/bin/env python3
"""The kernel's own NVMe/TCP target and a drive of ours that ends there.

  test_tcp_host.py [--kernels 6.1 6.12 7.3]

The guest has nvmet; the daemon outside reaches it through QEMU's user-mode network, and hands the drive on to hosts
over TCP. So the guest's own host is at the other end, and what it verifies went through both: host -> daemon -> nvmet.
In the end nvmet has two ports, and the drive two paths, of which one is cut off or said to be no good.
"""

import json
import os
import sys
import time

import guest
import sluice
from report import by_kernels
from test_tcp import SCRIPT as HOST
from test_tcp import free_port

TIMEOUT_S = 300
REMOTE = "nqn.2024-01.org.example:remote"
OURS = "nqn.2024-01.org.example:ours"
SIZE_MIB = 64

TARGET = """
for module in nvmet nvmet-tcp; do modprobe -q $module; done
mount -t configfs none /sys/kernel/config 2>/dev/null
NVMET=/sys/kernel/config/nvmet
truncate -s %dM /tmp/back
serve() {
  mkdir -p $NVMET/subsystems/$REMOTE/namespaces/1 && cd $NVMET/subsystems/$REMOTE &&
  echo 1 > attr_allow_any_host && printf /tmp/back > namespaces/1/device_path &&
  echo 1 > namespaces/1/buffered_io && echo 1 > namespaces/1/enable && cd /
}
# port NUMBER TCP_PORT
port() {
  mkdir -p $NVMET/ports/$1 && cd $NVMET/ports/$1 &&
  echo tcp > addr_trtype && echo ipv4 > addr_adrfam && echo 0.0.0.0 > addr_traddr && echo $2 > addr_trsvcid && cd /
}
plug() { ln -s $NVMET/subsystems/$REMOTE $NVMET/ports/$1/subsystems/$REMOTE; }
unplug() { rm $NVMET/ports/$1/subsystems/$REMOTE; }
check "nvmet has a subsystem" serve
check "and a port" port 1 4420
check "where the subsystem is" plug 1

# drive NAME VERB ARGS : the daemon opens the drive, and this guest attaches it
drive() {
  what=$1; shift
  check "$what: the daemon connects to nvmet" host "$@" || return
  c=$(connect $OURS) || { dmesg | tail -n 20; fail "$what: connect"; return; }
  check "$what: the namespace appears" within 10 disk_of $c 1 %d
  n=$(disk_of $c 1 %d)
}
end() { disconnect $c; check "$what: the daemon disconnects" host close; }
""" % (SIZE_MIB, SIZE_MIB << 11, SIZE_MIB << 11)

STEPS = """
drive plain open ""
for bs in 4k 16k 128k 1m; do
  check "plain: fio $bs" verify --bs=$bs --rw=randwrite --iodepth=32 --size=8m --numjobs=2 --offset_increment=8m --filename=/dev/$n --name=a
done
check "plain: mkfs" mkfs.ext4 -q -F /dev/$n
check "plain: e2fsck" e2fsck -fn /dev/$n
check "plain: blkdiscard" blkdiscard -f /dev/$n
written() { dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null && dd if=/tmp/data of=/dev/$n bs=1M oflag=direct 2>/dev/null &&
  dd if=/tmp/back bs=1M count=8 2>/dev/null | cmp - /tmp/data; }
check "plain: what is written is in nvmet's file" written
end
drive digests open header,data
for bs in 4k 128k; do
  check "digests: fio $bs" verify --bs=$bs --rw=randwrite --iodepth=32 --size=8m --filename=/dev/$n --name=a
done
# Four cuts while fio runs; it must see no error.
cuts() { for i in 1 2 3 4; do sleep 1; unplug 1 || return 1; sleep 0.5; plug 1 || return 1; done; }
( cuts > /tmp/cuts 2>&1; echo $? > /tmp/cut ) &
check "digests: fio while nvmet is cut off and comes back" verify --bs=16k --rw=randwrite --iodepth=16 --size=16m \\
  --verify_backlog=256 --time_based --runtime=8 --filename=/dev/$n --name=a
within 20 [ -e /tmp/cut ]
all_cut() { [ "$(cat /tmp/cut)" = 0 ]; }
check "digests: it was cut off four times" all_cut
check "digests: the daemon noticed" host losses
end

check "nvmet has a second port" port 2 4421
check "where the subsystem is, too" plug 2
drive paths paths round-robin
# What must see no error until it is told that it is enough.
load() { ( until [ -e /tmp/enough ]; do verify --bs=16k --rw=randwrite --iodepth=16 --size=8m --filename=/dev/$n --name=a \
  > /tmp/fio 2>&1 || exit 1; done ) & load=$!; }
unload() { touch /tmp/enough; wait $load || { cat /tmp/fio; return 1; }; }
# are STATE STATE USE USE : what the paths are said to be, and whether commands take them
are() { check "paths: they are $1 and $2" host states $1 $2; check "paths: they are $3 and $4" host uses $3 $4; }
ana() { echo $2 > $NVMET/ports/$1/ana_groups/1/ana_state; }
load
are optimized optimized used used
check "paths: port 2 is cut off" unplug 2
are optimized lost used idle
check "paths: port 2 is back" plug 2
are optimized optimized used used
check "paths: port 1 is cut off" unplug 1
are lost optimized idle used
check "paths: port 1 is less good" ana 1 non-optimized
check "paths: port 1 is back" plug 1
are non-optimized optimized idle used
check "paths: port 2 is no good" ana 2 inaccessible
are non-optimized inaccessible used idle
check "paths: neither is" ana 1 change
are change inaccessible idle idle
check "paths: port 2 is good again" ana 2 optimized
check "paths: port 1 is good again" ana 1 optimized
are optimized optimized used used
check "paths: no error was seen" unload
end
check "no complaint in the kernel log" quiet_log 'I/O error'
exit 0
"""


def boot(report, folder, kernel):
    ports = set()
    while len(ports) < 3:
        ports.add(free_port())
    port, *forwarded = ports
    first = {"first": [sluice.Namespace("null", "1MiB")]}
    with sluice.Daemon(folder, first, tcp={"first": "nqn.2024-01.org.example:first"}, port=port) as daemon:

        def opened(remote):
            # A file in the guest's memory has blocks of a page.
            namespace = {"target": "nvme-tcp", "block_size": 4096, "nvme_tcp": {**remote, "subnqn": REMOTE}}
            spec = {"name": "ours", "tcp": {"nqn": OURS}, "namespaces": [namespace]}
            path = os.path.join(folder, "ours.json")
            with open(path, "w") as file:
                json.dump(spec, file)
            daemon.command("drive", "create", "ours", "--spec", path)

        addresses = ["127.0.0.1:%d" % forward for forward in forwarded]

        def plain(digests=""):
            opened({"address": addresses[0], "digests": [word for word in digests.split(",") if word]})

        def devices():
            return json.loads(daemon.command("drive", "show", "ours", "-o", "json"))["devices"]

        def losses():
            count = devices()[0]["losses"]
            if count < 4:
                raise guest.GuestError("only %d losses" % count)

        def eventually(wanted, look):
            deadline = time.monotonic() + 30
            while (seen := look()) != wanted:
                if time.monotonic() > deadline:
                    raise guest.GuestError("%s, not %s" % (seen, wanted))
                time.sleep(0.2)

        def states(*wanted):
            eventually(list(wanted), lambda: [
                path["access"] if path["connected"] else "lost" for path in devices()])

        def uses(*wanted):
            def look():
                before = devices()
                time.sleep(1)
                moved = [after["completed"] > path["completed"] for path, after in zip(before, devices())]
                return ["used" if used else "idle" for used in moved]

            eventually(list(wanted), look)

        steps = {"open": plain, "losses": losses, "states": states, "uses": uses,
                 "paths": lambda policy: opened({"addresses": addresses, "policy": policy}), "close": lambda: daemon.command("drive", "delete", "ours") and ""}
        script = "\n".join([HOST, "PORT=%d" % port, "REMOTE=%s OURS=%s" % (REMOTE, OURS), TARGET, STEPS])
        ways = zip(addresses, ("10.0.2.15:4420", "10.0.2.15:4421"))
        forward = "user,id=net" + "".join(",hostfwd=tcp:%s-%s" % way for way in ways)
        network = ["-netdev", forward, "-device", "virtio-net-pci,netdev=net,romfile="]
        run = guest.Guest(kernel, script, timeout_s=TIMEOUT_S, qemu_args=network, steps=steps)
        # nvmet proves nothing of its power: connections that are cut under writes may have lost them.
        report.booted(run, "Linux %s" % kernel, daemon, expected=("may have lost power", "finished writes may be lost"))


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        report.theme("NVMe/TCP: Linux %s as target" % kernel)
        report.scratch("NVMe/TCP", boot, kernel)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run))
