#!/usr/bin/env python3
"""The daemon drives a real PCI device: inside a guest, whose IOMMU confines the device.

  test_device.py [--kernel 6.12]

The device is QEMU's own NVMe controller. The guest's kernel driver fills it, then vfio-pci takes it, and a daemon in
the guest serves two drives on parts of it to hosts of the guest's; in the end the kernel's driver looks at it again.
"""

import os
import re
import subprocess
import sys

import guest
import sluice
from report import by_kernel

TIMEOUT_S = 180
BLOCKS = 8192  # of 4 KiB: what the device has
LEFT, GAP = 3072, 1024  # blocks of the first drive, and of nobody between it and the second
WORKERS, WORKER_BLOCKS, WRITES = 2, 256, 400

CONFIG = """
[daemon]
api = "/tmp/api.sock"
state = "/tmp/state"
sockets = "/tmp/drives"
[[drive]]
name = "left"
[[drive.namespace]]
target = "nvme"
block_size = 4096
nvme = {{ pci = "0000:00:04.0", blocks = {left} }}
[[drive]]
name = "right"
[[drive.namespace]]
target = "nvme"
block_size = 4096
nvme = {{ pci = "0000:00:04.0", first_block = {right} }}
"""

SCRIPT = """
A=0000:00:04.0 SYS=/sys/bus/pci/devices/0000:00:04.0
export SLUICE_API=/tmp/api.sock
modprobe vfio-pci; modprobe vfio_iommu_type1
within 15 namespace_of $A 1 > /dev/null || { fail "the device appears"; exit 1; }
N=/dev/$(namespace_of $A 1)
head -c {bytes} /dev/urandom > /tmp/before
check "the kernel's driver fills the device" dd if=/tmp/before of=$N bs=1M oflag=direct

start() { # until the API answers
  sluice serve -c /config >> /tmp/log 2>&1 &
  daemon=$!
  within 20 sluice drive list > /dev/null 2>&1
}
says() { sluice drive show $1 2>&1 | tr '\\n' ' ' | grep -q "$2"; }
bind() { # DRIVER
  echo $1 > $SYS/driver_override
  [ ! -e $SYS/driver ] || echo $A > $SYS/driver/unbind
  echo $A > /sys/bus/pci/drivers_probe
}
stamp() { blockstamp write /tmp/drives/$1/cntrl {workers} {worker_blocks} 64 {writes} > /tmp/$1.stamps; }
verify() { blockstamp check $2 {workers} {worker_blocks} < /tmp/$1.stamps; }
nobodys() { dd if=$1 bs=4k skip={left} count={gap} iflag=direct 2>/dev/null | cmp -n {gap_bytes} - /tmp/gap; }
dd if=/tmp/before of=/tmp/gap bs=4k skip={left} count={gap} 2>/dev/null

check "a daemon starts" start
check "a device that the kernel drives is refused, in words" says left "the driver nvme: bind it to vfio-pci"
kill $daemon; wait $daemon

check "vfio-pci takes the device" bind vfio-pci
check "the device is in a group" ls /dev/vfio/$(basename $(readlink $SYS/iommu_group))
check "a daemon starts again" start
if ! says left ready || ! says right ready; then
  sluice drive show left; sluice drive show right; tail -n 20 /tmp/log; dmesg | tail -n 30
fi
check "the first drive is ready" says left ready
check "the second drive is ready" says right ready
stamp left & first=$!
check "the second drive is written" stamp right
wait $first; code=$?
check "so is the first, meanwhile" [ $code = 0 ]
check "the first drive reads as written" verify left /tmp/drives/left/cntrl
check "the second drive reads as written" verify right /tmp/drives/right/cntrl
kill -9 $daemon; wait $daemon
check "a daemon starts after a crash" start
within 10 says left ready
check "the first drive is as it was" verify left /tmp/drives/left/cntrl
kill $daemon
wait $daemon; code=$?
check "the daemon ends cleanly" [ $code = 0 ]
tail -n 5 /tmp/log

check "the kernel's driver takes the device back" bind nvme
within 15 namespace_of $A 1 > /dev/null
N=/dev/$(namespace_of $A 1)
check "the first drive's data is on the device" verify left $N
check "what was nobody's is as it was" nobodys $N
check "no complaint in the kernel log" quiet_log 'DMAR:.*fault|I/O error'
exit 0
"""


def script():
    return (
        SCRIPT.replace("{bytes}", str(BLOCKS * 4096)).replace("{left}", str(LEFT)).replace("{gap}", str(GAP))
        .replace("{gap_bytes}", str(GAP * 4096)).replace("{workers}", str(WORKERS))
        .replace("{worker_blocks}", str(WORKER_BLOCKS)).replace("{writes}", str(WRITES))
    )


def binary_with_libraries():
    """The daemon for the guest: the program, and the libraries that it needs."""
    listed = subprocess.run(["ldd", sluice.BINARY], capture_output=True, text=True, check=True).stdout
    files = {"usr/bin/sluice": sluice.BINARY, "usr/bin/blockstamp": guest.blockstamp()}
    for path in re.findall(r"=> (/\S+)", listed):
        name = os.path.basename(path)
        if name == "libgcc_s.so.1":  # the guest's own tools bring newer ones of the others
            files["usr/lib/x86_64-linux-gnu/" + name] = path
    return files


def qemu_args(image):
    with open(image, "wb") as file:
        file.truncate(BLOCKS * 4096)
    return [
        "-device", "intel-iommu,caching-mode=on,intremap=on",
        "-drive", "file=%s,format=raw,if=none,id=disk" % image,
        "-device", "nvme,serial=device,addr=04.0,drive=disk,logical_block_size=4096,physical_block_size=4096",
    ]


def run(report, kernel="6.12"):
    report.theme("device: a daemon in a guest drives a PCI device, Linux %s" % kernel)
    with guest.scratch() as folder:
        config = os.path.join(folder, "config")
        with open(config, "w") as file:
            file.write(CONFIG.format(left=LEFT, right=LEFT + GAP))
        files = {**binary_with_libraries(), "config": config}
        booted = guest.Guest(
            kernel, script(), timeout_s=TIMEOUT_S, files=files, kernel_args="intel_iommu=on",
            qemu_args=qemu_args(os.path.join(folder, "disk.img")),
        )
        report.guest(booted, "device")


if __name__ == "__main__":
    sys.exit(by_kernel(__doc__, run))
