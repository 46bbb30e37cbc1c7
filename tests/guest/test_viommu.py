#!/usr/bin/env python3
"""A guest whose drive is behind a virtual IOMMU: every piece of memory is mapped for its command alone.

  test_viommu.py [--kernel 6.12]
"""

import argparse
import os
import sys

import guest
import sluice
from report import Report

TIMEOUT_S = 120
SCRIPT = """
A=0000:00:04.0
within 15 namespace_of $A 1 > /dev/null || { fail "the drive appears"; exit 1; }
N=$(namespace_of $A 1)
check "the drive is behind the IOMMU" grep -qx DMA /sys/bus/pci/devices/$A/iommu_group/type
for QD in 1 16; do
  check "fio with verify, QD $QD" fio --name=v --filename=/dev/$N --ioengine=libaio --direct=1 --verify=crc32c \\
    --verify_fatal=1 --do_verify=1 --bsrange=4k-128k --bs_unaligned=0 --rw=randrw --iodepth=$QD --size=8m
done
check "ext4" mkfs.ext4 -q /dev/$N
mkdir -p /mnt/a
check "mount" mount -t ext4 /dev/$N /mnt/a
dd if=/dev/urandom of=/mnt/a/file bs=64k count=64 2>/dev/null
sha256sum < /mnt/a/file > /mnt/a/sum
check "umount" umount /mnt/a
echo 1 > /sys/bus/pci/devices/$A/reset
check "after a reset: mount" mount -t ext4 /dev/$N /mnt/a
same() { [ "$(sha256sum < /mnt/a/file)" = "$(cat /mnt/a/sum)" ]; }
check "the file is what it was" same
check "umount again" umount /mnt/a
exit 0
"""


def run(report, kernel="6.12"):
    report.theme("a guest with a virtual IOMMU")
    with guest.scratch() as folder:
        drive = sluice.Namespace("file", "64MiB", 512, os.path.join(folder, "disk.img"))
        with sluice.Daemon(folder, {"disk": [drive]}) as daemon:
            iommu = ["-device", "intel-iommu,caching-mode=on,intremap=on"]
            # The IOMMU has to be there before what it is for.
            devices = iommu + guest.vfio_user(daemon.socket("disk"), 4)
            machine = guest.Guest(kernel, SCRIPT, timeout_s=TIMEOUT_S, kernel_args="intel_iommu=on", qemu_args=devices)
            report.guest(machine, "viommu")
            complaints = daemon.complaints()
            report.check("viommu: the daemon has no complaints", not complaints, complaints)


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12", choices=guest.KERNELS)
    options = parser.parse_args()
    if sluice.missing():
        sys.exit("error: " + sluice.missing())
    report = Report()
    run(report, options.kernel)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
