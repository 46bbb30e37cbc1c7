#!/usr/bin/env python3
"""The kernel's own NVMe/TCP host and a drive for hosts on the network.

  test_tcp.py [--kernels 6.1 6.12 7.3]

The guest reaches the daemon on the loopback device of this machine through QEMU's user-mode network. In the end it has
one drive three times: as two hosts on the network, and as a device of its own.
"""

import socket
import sys

import guest
import sluice
from report import by_kernels

TIMEOUT_S = 240
NQN = {"disk": "nqn.2024-01.org.example:disk", "image": "nqn.2024-01.org.example:image"}

SCRIPT = """
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
for module in virtio_pci virtio_net nvme-tcp ext4; do modprobe -q $module; done
modprobe -q crc32c-intel || modprobe -q crc32c_generic
within 5 [ -e /sys/class/net/eth0 ] || { fail "a network device appears"; exit 1; }
ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up

# connect NQN OPTIONS : prints the name of the controller
connect() {
  exec 8<>/dev/nvme-fabrics
  echo "transport=tcp,traddr=10.0.2.2,trsvcid=$PORT,nqn=$1,hostnqn=$HOST,hostid=${HOST##*:}$2" >&8 || return 1
  read -r answer <&8
  exec 8>&-
  number=${answer#*instance=}; echo nvme${number%%,*}
}
disk_of() { for dir in /sys/class/nvme/$1/nvme*n$2 /sys/class/nvme-subsystem/*/nvme*n$2; do
  [ -e $dir ] && [ -e /dev/$(basename $dir) ] && [ "$(sectors $(basename $dir))" = $3 ] && { basename $dir; return; }; done; return 1; }
verify() { fio --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal "$@"; }
disconnect() { echo 1 > /sys/class/nvme/$1/delete_controller; }

# use NAME NQN SECTORS OPTIONS : all that a host does with a drive
use() {
  what=$1
  say "$what: connect $4"
  c=$(connect $2 $4) || { dmesg | tail -n 20; fail "$what: connect"; return; }
  pass "$what: connect"
  check "$what: the namespace appears" within 10 disk_of $c 1 $3
  n=$(disk_of $c 1 $3) || { dmesg | tail -n 20; return; }
  four_queues() { [ "$(cat /sys/class/nvme/$c/queue_count)" = 5 ]; }
  check "$what: an admin queue and four I/O queues" four_queues
  check "$what: id-ctrl" nvme id-ctrl /dev/$c
  check "$what: smart-log" nvme smart-log /dev/$c
  for bs in 4k 16k 128k 1m; do
    check "$what: fio $bs" verify --bs=$bs --rw=randwrite --iodepth=32 --size=4m --numjobs=4 --offset_increment=4m \
      --filename=/dev/$n --name=a
  done
  check "$what: mkfs" mkfs.ext4 -q -F /dev/$n
  mkdir -p /mnt/t
  check "$what: mount" mount -t ext4 /dev/$n /mnt/t
  check "$what: verified file" verify --name=f --directory=/mnt/t --bs=16k --rw=randwrite --iodepth=8 --size=8m --fsync=64
  check "$what: umount" umount /mnt/t
  check "$what: e2fsck" e2fsck -fn /dev/$n
  check "$what: blkdiscard" blkdiscard -f /dev/$n
  check "$what: a reset" nvme reset /dev/$c
  check "$what: fio after the reset" verify --bs=4k --rw=randwrite --iodepth=16 --size=4m --filename=/dev/$n --name=a
  check "$what: disconnect" disconnect $c
}

is_live() { [ "$(cat /sys/class/nvme/$1/state)" = live ]; }
pci_controller() { for dir in /sys/class/nvme/nvme*; do
  [ "$(cat $dir/transport)" = pcie ] && { basename $dir; return; }; done; return 1; }

# transfer CONTROLLER write|read FILE : eight blocks by way of this controller, whichever paths the kernel prefers
transfer() {
  case $2 in
    write) nvme io-passthru /dev/$1 --opcode=1 --namespace-id=1 --cdw10=8 --cdw12=7 --data-len=4096 --write --input-file=$3 ;;
    read) nvme io-passthru /dev/$1 --opcode=2 --namespace-id=1 --cdw10=8 --cdw12=7 --data-len=4096 --read --raw-binary > $3 ;;
  esac
}
# shared CONTROLLER... : what is written by way of one is read by way of each
shared() {
  for by in "$@"; do
    head -c 4096 /dev/urandom > /tmp/written
    transfer $by write /tmp/written || return 1
    for other in "$@"; do transfer $other read /tmp/read && cmp /tmp/written /tmp/read || return 1; done
  done
}
are_three() { [ "$(cat /sys/class/nvme/*/cntlid | sort -u | wc -l)" = 3 ]; }
come_and_go() { for i in 1 2 3 4 5; do disconnect $b || return 1; b=$(HOST=$FRIEND; connect $1) || return 1; done; }

# together NQN : one drive as two hosts on the network and as a device
together() {
  say "together: one drive, three controllers"
  FRIEND=nqn.2014-08.org.nvmexpress:uuid:22222222-3333-4444-8555-666666666666
  a=$(connect $1 ,nr_io_queues=4) || { dmesg | tail -n 20; fail "together: connect"; return; }
  b=$(HOST=$FRIEND; connect $1 ,nr_io_queues=4) || { dmesg | tail -n 20; fail "together: another host connects"; return; }
  modprobe -q nvme
  check "together: the device appears" within 10 pci_controller
  p=$(pci_controller) || { dmesg | tail -n 20; return; }
  for c in $a $b $p; do check "together: $(cat /sys/class/nvme/$c/transport) $c is live" within 10 is_live $c; done
  check "together: three controllers of one subsystem" are_three
  check "together: the same data by way of each" shared $a $b $p
  n=$(disk_of $a 1 $2) || { fail "together: a disk"; return; }
  verify --bs=16k --rw=randwrite --iodepth=8 --size=32m --filename=/dev/$n --name=a > /tmp/fio &
  fio=$!
  check "together: another host comes and goes" come_and_go $1
  check "together: and nothing of the others is lost" wait $fio
  check "together: the same data again" shared $a $b $p
  for c in $a $b; do check "together: disconnect $c" disconnect $c; done
}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def boot(report, folder, kernel):
    port = free_port()
    drives = {
        "disk": [sluice.Namespace("memory", "256MiB")],
        "image": [sluice.Namespace("file", "192MiB", 4096, folder + "/image.img")],
    }
    script = [
        SCRIPT, "PORT=%d" % port,
        "discovered() { [ \"$(nvme discover -t tcp -a 10.0.2.2 -s $PORT -q $HOST -I ${HOST##*:} | grep -c 'subnqn: *%s')\" = 2 ]; }"
        % NQN["disk"].rpartition(":")[0],
        "check 'discover' discovered",
        "use memory %s %d ,nr_io_queues=4" % (NQN["disk"], 256 << 11),
        "use digests %s %d ,nr_io_queues=4,hdr_digest,data_digest" % (NQN["image"], 192 << 11),
        "use again %s %d ,nr_io_queues=4,data_digest,queue_size=16" % (NQN["disk"], 256 << 11),
        "together %s %d" % (NQN["disk"], 256 << 11),
        "refused() { ! connect nqn.2024-01.org.example:nothing; }",
        "check 'a drive that is not there' refused",
        "check 'no complaint in the kernel log' quiet_log 'timeout|I/O error'",
        "exit 0",
    ]
    network = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
    with sluice.Daemon(folder, drives, tcp=NQN, port=port, both=("disk",)) as daemon:
        text = "\n".join(script) + "\n"
        run = guest.Guest(kernel, text, daemon.sockets(), cpus=4, timeout_s=TIMEOUT_S, qemu_args=network)
        report.booted(run, "Linux %s" % kernel, daemon)


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        report.theme("NVMe/TCP: Linux %s as host" % kernel)
        report.scratch("NVMe/TCP", boot, kernel)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run))
