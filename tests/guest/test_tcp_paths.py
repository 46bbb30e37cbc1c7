#!/usr/bin/env python3
"""A host with two ways to one drive: the kernel's own multipath over two networks, one of which fails under load.

  test_tcp_paths.py [--kernels 6.1 6.12 7.3]

The guest has two network cards, each on a user-mode network of its own, and by each it reaches another address of the
daemon. A network fails as its cable is pulled: what is sent is lost, and nobody is told. Then an operator takes one of the
two out of service, and both.
"""

import os
import sys

import guest
import qmp
import sluice
import test_tcp
from report import by_kernels

TIMEOUT_S = 240
NQN = "nqn.2024-01.org.example:disk"

SCRIPT = """
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
for module in virtio_pci virtio_net nvme-tcp; do modprobe -q $module; done
modprobe -q crc32c-intel || modprobe -q crc32c_generic
within 5 [ -e /sys/class/net/eth1 ] || { fail "two network devices appear"; exit 1; }
for card in 0 1; do ip addr add 10.0.$card.15/24 dev eth$card; ip link set eth$card up; done

# connect ADDRESS PORT : prints the name of the controller
connect() {
  exec 8<>/dev/nvme-fabrics
  echo "transport=tcp,traddr=$1,trsvcid=$2,nqn=$NQN,hostnqn=$HOST,hostid=${HOST##*:},nr_io_queues=2,keep_alive_tmo=4,reconnect_delay=1" >&8 || return 1
  read -r answer <&8
  exec 8>&-
  number=${answer#*instance=}; echo nvme${number%%,*}
}
is_live() { [ "$(cat /sys/class/nvme/$1/state)" = live ]; }
is_cut_off() { ! is_live $1; }
path_of() { basename /sys/class/nvme/$1/nvme*c*n1; }
has_path() { [ -e /sys/class/nvme/$1/nvme*c*n1 ]; }
served() { awk '{print $1 + $5}' /sys/class/nvme/$1/$(path_of $1)/stat; }
# is_used CONTROLLER : commands take this way
is_used() { before=$(served $1); sleep 0.5; [ "$(served $1)" -gt "$before" ]; }
is_unused() { ! is_used $1; }

# load : starts what must see no error, for 10 s at least
load() {
  fio --ioengine=libaio --direct=1 --name=a --filename=/dev/$n --bs=4k --rw=randwrite --iodepth=16 --size=8m --rate_iops=400 \\
    --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal > /tmp/fio 2>&1 &
  fio=$!
}
is_loaded() { kill -0 $fio; }
# unload : its end, without an error
unload() { wait $fio || { cat /tmp/fio; return 1; }; }

a=$(connect 10.0.0.2 $PORT_A) && b=$(connect 10.0.1.2 $PORT_B) || { dmesg | tail -n 20; fail "two ways: connect"; exit 1; }
for c in $a $b; do check "$c is live and has a path" within 10 has_path $c; done
subsystem=$(basename $(dirname /sys/class/nvme-subsystem/nvme-subsys*/$a))
is_one_subsystem() { [ -e /sys/class/nvme-subsystem/$subsystem/$b ]; }
check "both are controllers of one subsystem" is_one_subsystem
lists_both() { nvme list-subsys > /tmp/list; cat /tmp/list; [ "$(grep -c 'tcp .*live' /tmp/list)" = 2 ]; }
check "nvme list-subsys shows two ways that are live" lists_both
one_disk() { n=$(ls /sys/block | grep -x 'nvme[0-9]*n1'); [ "$(sectors $n)" = $SECTORS ]; }
check "they lead to one disk" within 5 one_disk
echo round-robin > /sys/class/nvme-subsystem/$subsystem/iopolicy

say "a cable is pulled"
load
for c in $a $b; do check "$c is used" within 5 is_used $c; done
check "the cable of $b is pulled" host pull 1
check "$b is noticed to be cut off" within 30 is_cut_off $b
check "$a is used" within 5 is_used $a
check "the load has not ended" is_loaded
check "the cable is plugged in" host plug 1
check "$b is live again" within 30 is_live $b
check "no error was seen" unload

say "a way is taken out of service"
access() { cat /sys/class/nvme/$1/$(path_of $1)/ana_state; }
is_access() { [ "$(access $1)" = $2 ]; }
load
for c in $a $b; do check "$c is used again" within 5 is_used $c; done
check "$a is made inaccessible" host access inaccessible 0
check "the host hears of it" within 5 is_access $a inaccessible
check "$a is not used" is_unused $a
check "$b is used" is_used $b
check "so is $b" host access inaccessible
check "the host hears of that, too" within 5 is_access $b inaccessible
check "commands wait" is_unused $b
check "the load has not ended" is_loaded
check "$a is made non-optimized, $b still is inaccessible" host access non-optimized 0
check "commands go on" within 5 is_used $a
check "all is optimized" host access optimized
for c in $a $b; do check "$c is optimized" within 5 is_access $c optimized; done
for c in $a $b; do check "$c is used" within 5 is_used $c; done
check "and no error was seen" unload
"""

END = """
for c in $a $b; do echo 1 > /sys/class/nvme/$c/delete_controller; done
check "no error in the kernel log" quiet_log 'I/O [Ee]rror'
exit 0
"""


def boot(report, folder, kernel):
    ports = set()
    while len(ports) < 2:
        ports.add(test_tcp.free_port())
    ports = tuple(ports)
    drives = {"disk": [sluice.Namespace("memory", "64MiB")]}
    facts = "PORT_A=%d PORT_B=%d NQN=%s SECTORS=%d" % (*ports, NQN, 64 << 11)
    monitor = qmp.Monitor(os.path.join(folder, "monitor"))
    cards = [argument for card in (0, 1) for argument in (
        "-netdev", "user,id=net%d,net=10.0.%d.0/24" % (card, card),
        "-device", "virtio-net-pci,netdev=net%d,romfile=" % card)]
    steps = {
        "pull": lambda card: monitor.execute("set_link", name="net" + card, up=False),
        "plug": lambda card: monitor.execute("set_link", name="net" + card, up=True),
    }
    with sluice.Daemon(folder, drives, tcp={"disk": NQN}, ports=ports) as daemon:
        steps["access"] = lambda state, *at: daemon.set_access("disk", state, *(ports[int(number)] for number in at))
        run = guest.Guest(kernel, "\n".join((facts, SCRIPT, END)), timeout_s=TIMEOUT_S, steps=steps,
                          qemu_args=cards + monitor.qemu_args())
        report.booted(run, "Linux %s" % kernel, daemon)


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        report.theme("NVMe/TCP: Linux %s with two ways to a drive" % kernel)
        report.scratch("two ways", boot, kernel)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run))
