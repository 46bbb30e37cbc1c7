#!/usr/bin/env python3
"""The slowest commands over NVMe/TCP: Sluice's controller beside the kernel's nvmet, in one guest, for the same host.

  tail.py [--seconds 10] [--depths 1,2,4,8,16,32,64,128,256] [--kernel 6.12]      see scripts/tail.sh

Both serve a disk in memory on the guest's loopback; the host of `sluice bench tail` measures them one after the other. The
guest is emulated where there is no KVM: then figures are for comparing the two, and for nothing else.
"""

import argparse
import sys

import guest
import sluice
from report import Report

SCRIPT = """
for module in nvmet nvmet-tcp; do modprobe -q $module; done
check "a disk in memory" modprobe brd rd_nr=1 rd_size=65536
ip link set lo up
mount -t configfs none /sys/kernel/config 2>/dev/null
serve() {
  cd /sys/kernel/config/nvmet && mkdir -p subsystems/$PEER/namespaces/1 ports/1 && echo 1 > subsystems/$PEER/attr_allow_any_host &&
    printf /dev/ram0 > subsystems/$PEER/namespaces/1/device_path && echo 1 > subsystems/$PEER/namespaces/1/enable &&
    echo tcp > ports/1/addr_trtype && echo ipv4 > ports/1/addr_adrfam && echo 127.0.0.1 > ports/1/addr_traddr &&
    echo 4420 > ports/1/addr_trsvcid && ln -s /sys/kernel/config/nvmet/subsystems/$PEER ports/1/subsystems/$PEER && cd /
}
check "nvmet serves it" serve
dd if=/dev/urandom of=/dev/ram0 bs=1M count=64 2>/dev/null
measure() { $BENCH tail --seconds $SECONDS_EACH --queue-depth $DEPTHS --target memory:64MiB --peer 127.0.0.1:4420 --peer-nqn $PEER > /tmp/table; }
check "both are measured" measure
cat /tmp/table
rows() { [ $(grep -c "^$1 .*QD" /tmp/table) = $(echo $DEPTHS | tr , '\\n' | wc -l) ]; }
check "Sluice has a row for each depth" rows sluice
check "nvmet has a row for each depth" rows peer
exit 0
"""
PEER = "nqn.2024-01.org.example:nvmet"


def run(report, kernel="6.12", seconds=1.0, depths="1,32"):
    report.theme("tail: NVMe/TCP beside nvmet, Linux %s" % kernel)
    values = "BENCH='%s' SECONDS_EACH=%s DEPTHS=%s PEER=%s\n" % (sluice.BENCH_INSIDE, seconds, depths, PEER)
    limit = 150 + 2 * len(depths.split(",")) * (seconds + 10)
    machine = guest.Guest(kernel, values + SCRIPT, timeout_s=limit, files=sluice.files_inside(bench=True))
    report.guest(machine, "tail")
    print("Linux %s in a guest (%s)" % (machine.release, guest.acceleration()))


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12", choices=guest.KERNELS)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--depths", default="1,2,4,8,16,32,64,128,256")
    arguments = parser.parse_args()
    report = Report()
    run(report, arguments.kernel, arguments.seconds, arguments.depths)
    sys.exit(report.finish())


if __name__ == "__main__":
    main()
