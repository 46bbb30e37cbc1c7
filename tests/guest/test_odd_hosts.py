#!/usr/bin/env python3
"""Guests that use a drive in other ways than most: behind an IOMMU of their own, where each piece of memory is mapped for
its command alone; with the interrupt pin (INTx) for want of messages; with queues that are polled; with memory that is
not shared, for which QEMU has to be asked.

  test_odd_hosts.py [--kernel 6.12]
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
ODD
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


# A name, the kernel's arguments, QEMU's, and what shows that it is so.
HOSTS = (
    ("viommu", "intel_iommu=on", ["-device", "intel-iommu,caching-mode=on,intremap=on"],
     'check "the drive is behind the IOMMU" grep -qx DMA /sys/bus/pci/devices/$A/iommu_group/type'),
    ("pin", "pci=nomsi", [], 'check "the drive has no messages" sh -c "grep nvme /proc/interrupts | grep -q IO-APIC"'),
    ("polled", "nvme.poll_queues=2", [], """
        check "the drive has queues that are polled" grep -qx 1 /sys/block/$N/queue/io_poll
        check "fio polls them" fio --name=p --filename=/dev/$N --ioengine=pvsync2 --hipri --direct=1 --verify=crc32c \\
          --verify_fatal=1 --do_verify=1 --bs=4k --rw=randwrite --size=4m"""),
    ("unshared", "", [], ""),
)


def run(report, kernel="6.12"):
    for name, words, devices, odd in HOSTS:
        report.theme("an odd host: %s" % name)
        with guest.scratch() as folder:
            drive = sluice.Namespace("file", "64MiB", 512, os.path.join(folder, "disk.img"))
            with sluice.Daemon(folder, {"disk": [drive]}) as daemon:
                # An IOMMU has to be there before what it is for.
                devices = devices + guest.vfio_user(daemon.socket("disk"), 4)
                shared = name != "unshared"
                machine = guest.Guest(kernel, SCRIPT.replace("ODD", odd), kernel_args=words, qemu_args=devices,
                                      timeout_s=TIMEOUT_S, shared=shared)
                report.guest(machine, name)
                complaints = daemon.complaints()
                report.check("%s: the daemon has no complaints" % name, not complaints, complaints)


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
