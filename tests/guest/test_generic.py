#!/usr/bin/env python3
"""The daemon serves a namespace that the kernel drives, by NVMe commands on io_uring (/dev/ng0n1); inside a guest.

  test_generic.py [--kernels 6.1 7.3]

The device is QEMU's own NVMe controller. A daemon in the guest serves it to hosts of the guest's: what one side writes
the other reads; the kernel resets the controller under load; commands come to a device that is gone.
"""

import argparse
import os
import sys

import guest
import sluice
from report import Report

TIMEOUT_S = 300
BLOCKS = 8192  # of 4 KiB: what the device has
LEFT = 4096  # blocks of the first of two drives
WORKERS, WORKER_BLOCKS, WRITES = 2, 128, 200

BAD = 7000  # a block that the device cannot read
NQN = "nqn.2024-01.org.example:generic"
PORT = 4420

HEAD = """
[daemon]
api = "/tmp/api.sock"
state = "/tmp/state"
sockets = "/tmp/drives"
"""
DRIVE = """
[[drive]]
name = "%s"
[[drive.namespace]]
target = "nvme"
block_size = 4096
nvme = { generic = "%s"%s }
"""
CONFIGS = {
    "whole": HEAD + DRIVE % ("whole", "/dev/ng0n1", ""),
    "halves": HEAD + DRIVE % ("left", "/dev/ng0n1", ", blocks = %d" % LEFT) + DRIVE % (
        "right", "/dev/ng0n1", ", first_block = %d" % LEFT),
    "wrong": HEAD + DRIVE % ("block", "/dev/nvme0n1", "") + DRIVE % ("controller", "/dev/nvme0", "") + DRIVE % (
        "null", "/dev/null", "") + DRIVE % ("verify", "/dev/ng0n1", ', passthrough = { io = ["verify"] }'),
    "tcp": HEAD + '[tcp]\nlisten = ["127.0.0.1:%d"]\n' % PORT + (DRIVE % (
        "net", "/dev/ng0n1", ', passthrough = { admin = ["get_log_page"] }')).replace(
        "[[drive.namespace]]", '[drive.tcp]\nnqn = "%s"\n[[drive.namespace]]' % NQN),
}

SCRIPT = """
A=0000:00:04.0
export SLUICE_API=/tmp/api.sock
for module in nvme nvme-tcp; do modprobe -q $module; done
modprobe -q crc32c-intel || modprobe -q crc32c_generic
ip link set lo up
within 15 [ -c /dev/ng0n1 ] || { fail "the generic device appears"; exit 1; }
N=/dev/nvme0n1
tool() { $DAEMON "$@"; }
start() { # CONFIG
  rm -rf /tmp/state
  $DAEMON serve -c /$1 >> /tmp/log 2>&1 &
  daemon=$!
  within 30 tool drive list > /dev/null 2>&1
}
end() { kill $daemon; wait $daemon; }
says() { tool drive show $1 2>&1 | tr '\n' ' ' | grep -q "$2"; }
ready() { says $1 ready || { tool drive show $1; tail -n 20 /tmp/log; return 1; }; }
stamp() { blockstamp write /tmp/drives/$1/cntrl {workers} {worker_blocks} 64 {writes} > /tmp/$1.stamps; }
verify() { blockstamp check $2 {workers} {worker_blocks} < /tmp/$1.stamps; }

check "a daemon starts on wrong devices" start wrong
check "a block device is refused, in words" says block "not the generic device of an NVMe namespace"
check "so is a controller" says controller "not the generic device of an NVMe namespace"
check "so is an opcode that the device does not have" says verify "the device does not have Verify"
check "so is any other file" says null "not the generic device of an NVMe namespace"
end
mkdir -p /mnt/fs
mkfs.ext4 -q $N && mount -t ext4 $N /mnt/fs
check "a daemon starts on a mounted namespace" start whole
check "it is refused, in words" says whole "in use by another process, or its block device is mounted"
end; umount /mnt/fs

head -c {bytes} /dev/urandom > /tmp/before
check "the kernel's driver fills the device" dd if=/tmp/before of=$N bs=1M oflag=direct

# The drive as the kernel's own host sees it, over TCP to this same machine: all kinds of commands.
check "a daemon starts" start tcp
check "the drive is ready" ready net
connect() {
  exec 8<>/dev/nvme-fabrics
  echo "transport=tcp,traddr=127.0.0.1,trsvcid={port},nqn={nqn},hostnqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555,hostid=11111111-2222-4333-8444-555555555555" >&8 || return 1
  read -r answer <&8
  exec 8>&-
  number=${answer#*instance=}; c=nvme${number%%,*}
}
disk() { ls -d /sys/class/nvme/$c/nvme*n1 > /dev/null 2>&1; }
check "the kernel's host connects" connect
check "its disk appears" within 10 disk
T=/dev/$(basename /sys/class/nvme/$c/nvme*n1 | sed 's/c[0-9]*n/n/')
blocks() { dd if=$1 bs=4k skip=$2 count=$3 iflag=direct 2>/dev/null; } # DEVICE FIRST COUNT
same() { for part in 0 1024 2048 3072; do [ "$(blocks $T $part 1024 | sha256sum)" = "$(blocks $N $part 1024 | sha256sum)" ] || return 1; done; }
zeros() { blocks $N $1 $2 | cmp -n $(($2 * 4096)) - /dev/zero; }
check "the drive has what the kernel wrote" sh -c "dd if=$T bs=1M count=16 iflag=direct 2>/dev/null | cmp -n 16777216 - /tmp/before"
for kind in 4k/1m 64k/4m 1m/8m; do
  bs=${kind%/*} size=${kind#*/}
  check "verified writes of $bs" fio --name=a --filename=$T --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
    --do_verify=1 --bs=$bs --rw=randwrite --iodepth=32 --size=$size --minimal
done
check "unaligned memory" fio --name=a --filename=$T --ioengine=psync --direct=1 --iomem_align=512 --verify=crc32c --verify_fatal=1 \
  --do_verify=1 --bs=96k --rw=randwrite --size=4m --minimal
check "the kernel's driver reads the same" same
check "flush" nvme flush $T -n 1
check "write zeroes" nvme write-zeroes $T -s 16 -c 63
check "they are on the device" zeros 16 64
check "write zeroes that may deallocate" nvme write-zeroes $T -s 3000 -c 999 -d
check "deallocate" nvme dsm $T -n 1 -d -s 100,600 -b 64,32
check "the drive reads as the device does, after it" same
head -c 32768 /tmp/before > /tmp/piece
check "write with FUA" nvme write $T -s 200 -c 7 -z 32768 -f -d /tmp/piece
check "compare what is equal" nvme compare $T -s 200 -c 7 -z 32768 -d /tmp/piece
differs() { nvme compare $T -s 201 -c 7 -z 32768 -d /tmp/piece 2>&1 | tee /tmp/said | grep -qiE "0x4?285|compare failure"; }
check "compare what is not" differs
no_log() { nvme get-log /dev/$c -n 1 -i 0xc0 -l 512 2>&1 | tee /tmp/said | grep -qiE "0x4?002|invalid field" || { cat /tmp/said; return 1; }; }
# The daemon would say Invalid Log Page.
check "a log of the vendor's is the device's to have" no_log
broken() { nvme $1 $T -s {bad} -c 0 $2 2>&1 | tee /tmp/said | grep -qiE "0x4?281|unrecovered read" || { cat /tmp/said; return 1; }; }
check "a block that the device cannot read has the device's status" broken read "-z 4096 -d /tmp/null"
check "its neighbour reads" nvme read $T -s $(({bad} + 1)) -c 0 -z 4096 -d /tmp/null
tool drive show net
echo 1 > /sys/class/nvme/$c/delete_controller
check "the daemon ends cleanly" end

# And as a virtual machine sees it.
check "a daemon starts for virtual machines" start whole
check "the drive is ready for them" ready whole
check "nobody mounts it meanwhile" sh -c "! mount -t ext4 $N /mnt/fs"
drive=/tmp/drives/whole/cntrl
check "the drive is written" stamp whole
check "the drive reads as written" verify whole $drive
check "the kernel's driver reads what the drive wrote" verify whole $N
check "commands of many pages" /load $drive read 131072 8 16 0.2
blockstamp write $drive {workers} {worker_blocks} 64 100000000 > /tmp/whole.stamps & load=$!
goes_on() { [ $(wc -l < /tmp/whole.stamps) -gt $lines ]; }
resets() {
  for n in 1 2 3; do
    sleep 0.3; echo 1 > /sys/class/nvme/nvme0/reset_controller
    lines=$(wc -l < /tmp/whole.stamps)
    within 10 goes_on && kill -0 $load || return 1
  done
}
check "a load goes on while the kernel resets the controller" resets
kill $load; wait $load
check "nothing of it is lost" verify whole $drive
kill -9 $daemon; wait $daemon
check "a daemon starts after a crash" start whole
check "the drive is ready again" ready whole
check "the drive is as it was" verify whole $drive
end

check "a daemon starts with two drives on one namespace" start halves
check "the first is ready" ready left
check "the second is ready" ready right
stamp left & first=$!
check "the second is written" stamp right
wait $first; code=$?
check "so is the first, meanwhile" [ $code = 0 ]
check "the first reads as written" verify left /tmp/drives/left/cntrl
check "and the second" verify right /tmp/drives/right/cntrl
check "the first is where it should be" verify left $N
quiet_log() { ! dmesg | grep -v "{bad_sector}" | faults 'I/O error' | grep .; }
check "no complaint in the kernel log" quiet_log
none() { ! grep -v "not the generic device\\|in use by\\|does not have Verify\\|status=UNRECOVERED_READ_ERROR" /tmp/log | grep -e ERROR -e panicked; }
check "none in the daemon's" none

echo 1 > /sys/bus/pci/devices/$A/remove
gone() { blockstamp write /tmp/drives/left/cntrl 1 256 64 10 2>&1 | tee /tmp/said | grep -q "status 0x300" || { cat /tmp/said; return 1; }; }
check "a command to a device that is gone fails, soon" gone
lost() { tool drive show left -o json | grep -q '"connected": *false'; }
check "the drive says so" lost
check "the daemon ends cleanly without it" end
exit 0
"""


def script():
    words = {"bytes": BLOCKS * 4096, "workers": WORKERS, "worker_blocks": WORKER_BLOCKS, "writes": WRITES, "bad": BAD,
             "bad_sector": BAD * 8, "port": PORT, "nqn": NQN}
    text = "DAEMON='%s'\n%s" % (sluice.INSIDE, SCRIPT)
    for word, value in words.items():
        text = text.replace("{%s}" % word, str(value))
    return text


def qemu_args(image):
    """A device that cannot read one of its blocks."""
    with open(image, "wb") as file:
        file.truncate(BLOCKS * 4096)
    return [
        "-blockdev", "driver=file,node-name=file,filename=%s,discard=unmap" % image,
        "-blockdev", "driver=blkdebug,node-name=flawed,image=file,inject-error.0.event=none,inject-error.0.iotype=read,"
        "inject-error.0.errno=5,inject-error.0.once=off,inject-error.0.sector=%d" % (BAD * 8),
        "-blockdev", "driver=raw,node-name=disk,file=flawed,discard=unmap",
        "-device", "nvme,serial=device,addr=04.0,drive=disk,logical_block_size=4096,physical_block_size=4096",
    ]


def run(report, kernels=("6.1",)):
    for kernel in kernels:
        report.theme("generic: a daemon in a guest serves what its kernel drives, Linux %s" % kernel)
        with guest.scratch() as folder:
            files = {**sluice.files_inside(), "usr/bin/blockstamp": guest.blockstamp(), "load": guest.tool("load")}
            for name, text in CONFIGS.items():
                files[name] = os.path.join(folder, name)
                with open(files[name], "w") as file:
                    file.write(text)
            # Between host and target on one machine Linux 6.1 takes pages that TCP passes on for an overrun, and dies.
            booted = guest.Guest(
                kernel, script(), timeout_s=TIMEOUT_S, files=files, kernel_args="hardened_usercopy=off",
                qemu_args=qemu_args(os.path.join(folder, "disk.img")))
            report.guest(booted, "generic")


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=("6.1", "7.3"), choices=guest.KERNELS)
    options = parser.parse_args()
    report = Report()
    run(report, options.kernels)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
