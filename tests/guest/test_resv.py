#!/usr/bin/env python3
"""Reservations, as Linux and nvme-cli ask for them: three hosts at once on one drive.

  test_resv.py [--kernels 6.1 6.12 7.3]

One guest is all three: two hosts on the network, and the machine that has the drive as a device. Its kernel makes no
paths of one disk of its controllers (nvme_core.multipath=N), so each host has a disk of its own and is refused by itself.
A second drive, on the network alone, is of a daemon that is killed: what is to persist is there again.
"""

import os
import sys

import guest
import sluice
import test_tcp
from report import by_kernels

TIMEOUT_S = 200
NEAR = "nqn.2024-01.org.example:near"
KEPT = "nqn.2024-01.org.example:kept"
NEAR_MIB, KEPT_MIB, FORGETFUL_MIB = 64, 48, 32

HOSTS = """
ALICE=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
BOB=nqn.2014-08.org.nvmexpress:uuid:66666666-7777-4888-9999-aaaaaaaaaaaa

writes() { dd if=/dev/zero of=/dev/$1 bs=4k count=4 oflag=direct conv=notrunc; }
reads() { dd if=/dev/$1 of=/dev/null bs=4k count=4 iflag=direct; }
# conflict COMMAND... : it fails, and for that reason (EBADE to who reads and writes, the status to nvme-cli)
conflict() { "$@" > /tmp/conflict 2>&1 && return 1; cat /tmp/conflict; grep -Eiq 'invalid exchange|reservation conflict' /tmp/conflict; }
# register DISK KEY CPTPL : 3 is to persist through power loss, 2 is not to
register() { nvme resv-register /dev/$1 --nrkey=$2 --rrega=0 --cptpl=$3; }
acquire() { disk=$1; shift; nvme resv-acquire /dev/$disk "$@"; }
release() { disk=$1; shift; nvme resv-release /dev/$disk "$@"; }
# reported DISK TYPE KEY... : the registrants' keys in any order
reported() {
  nvme resv-report /dev/$1 --eds > /tmp/report || return 1
  cat /tmp/report
  grep -Eq "^rtype *: *$2\\$" /tmp/report || return 1
  shift 2
  grep -Eq "^reg(ctl|strt) *: *$#\\$" /tmp/report || return 1
  for key in "$@"; do grep -Eq "rkey *: *(0x)?0*$key\\$" /tmp/report || return 1; done
}
noticed() { nvme resv-notif-log /dev/$1 > /tmp/notice; cat /tmp/notice; grep -Eiq "preempted" /tmp/notice; }
"""

NEAR_STEPS = """
a=$(HOST=$ALICE; connect $NEAR ,nr_io_queues=2) && b=$(HOST=$BOB; connect $NEAR ,nr_io_queues=2) ||
  { dmesg | tail -n 20; fail "two hosts connect"; exit 1; }
modprobe -q nvme
check "the device appears" within 15 pci_controller
p=$(pci_controller) || { dmesg | tail -n 20; exit 1; }
for c in $a $b $p; do check "$c has a disk" within 10 disk_of $c 1 $NEAR_SECTORS; done
A=$(disk_of $a 1 $NEAR_SECTORS) B=$(disk_of $b 1 $NEAR_SECTORS) P=$(disk_of $p 1 $NEAR_SECTORS)
three_disks() { [ "$(printf '%s\\n' $A $B $P | sort -u | wc -l)" = 3 ]; }
check "three hosts have a disk each" three_disks

say "Write Exclusive: the machine holds it"
can_all() { nvme id-ns /dev/$A | grep -Eiq 'rescap *: *(0x)?ff'; }
check "the namespace can do all of it" can_all
check "a host on the network registers" register $A 0xa 3
check "the machine registers" register $P 0xc 3
check "it reserves the namespace" acquire $P --crkey=0xc --rtype=1 --racqa=0
check "it writes" writes $P
for n in $A $B; do
  check "$n reads" reads $n
  check "$n does not write" conflict writes $n
done
check "a registrant does not acquire what another holds" conflict acquire $A --crkey=0xa --rtype=1 --racqa=0
check "nor with a key that is not its own" conflict acquire $A --crkey=0xc --rtype=1 --racqa=0
check "who is not registered does not release it" conflict release $B --crkey=0xb --rtype=1 --rrela=0
for n in $A $B $P; do check "$n has the same reported" reported $n 1 a c; done
check "the machine releases it" release $P --crkey=0xc --rtype=1 --rrela=0
for n in $A $B $P; do check "$n writes" writes $n; done

say "Exclusive Access - Registrants Only: a host on the network holds it"
check "it reserves the namespace" acquire $A --crkey=0xa --rtype=4 --racqa=0
check "a registrant writes: the machine" writes $P
check "who is none does not read" conflict reads $B
check "nor write" conflict writes $B
check "it registers" register $B 0xb 3
check "and writes" writes $B

say "preempted under load"
fio --ioengine=libaio --direct=1 --name=a --filename=/dev/$A --rw=randwrite --bs=4k --iodepth=8 --size=8m --time_based --runtime=30 > /tmp/fio 2>&1 &
fio=$!
wrote() { [ "$(awk '{print $5}' /sys/block/$A/stat)" -gt $(($before + 50)) ]; }
before=$(awk '{print $5}' /sys/block/$A/stat)
check "the holder writes all the time" within 10 wrote
check "another preempts it, and aborts what it has under way" acquire $B --crkey=0xb --prkey=0xa --rtype=2 --racqa=2
head -c 8388608 /dev/urandom > /tmp/data
dd if=/tmp/data of=/dev/$B bs=1M oflag=direct 2> /dev/null
wait $fio
ended() { cat /tmp/fio; grep -Eiq 'invalid exchange' /tmp/fio; }
check "the holder's load ends with a conflict" ended
untouched() { dd if=/dev/$B bs=1M count=8 iflag=direct 2> /dev/null | cmp - /tmp/data; }
check "what was written after it is what is there" untouched
check "who preempted it holds it" reported $B 2 b c
check "who was preempted has a notice of it" noticed $a
check "it does not read" conflict reads $A
check "nor does the machine, which is registered" conflict reads $P
check "the machine clears all" release $P --crkey=0xc --rrela=1
check "nobody is registered" reported $B 0
for n in $A $B $P; do check "$n writes again" writes $n; done
for c in $a $b; do disconnect $c; done
"""

KEPT_STEPS = """
say "a daemon that is killed"
PORT=$KEPT_PORT
a=$(HOST=$ALICE; connect $KEPT ,nr_io_queues=1,reconnect_delay=1) && b=$(HOST=$BOB; connect $KEPT ,nr_io_queues=1,reconnect_delay=1) ||
  { dmesg | tail -n 20; fail "two hosts connect to the other drive"; exit 1; }
# Namespaces are looked for at once, and numbered in the order in which they are found: their sizes tell them apart.
for c in $a $b; do
  check "$c has a disk" within 10 disk_of $c '*' $KEPT_SECTORS
  check "and another" within 10 disk_of $c '*' $FORGETFUL_SECTORS
done
A=$(disk_of $a '*' $KEPT_SECTORS) B=$(disk_of $b '*' $KEPT_SECTORS)
A2=$(disk_of $a '*' $FORGETFUL_SECTORS) B2=$(disk_of $b '*' $FORGETFUL_SECTORS)
check "a host registers, to stay" register $A 0xa 3
check "another, too" register $B 0xb 3
check "it reserves the namespace" acquire $A --crkey=0xa --rtype=1 --racqa=0
check "the other does not write" conflict writes $B
check "it registers with the other namespace, not to stay" register $A2 0xa 2
check "and reserves that" acquire $A2 --crkey=0xa --rtype=1 --racqa=0
check "the other does not write there either" conflict writes $B2
check "the daemon is killed and started again" host restart
for n in $A $B; do check "what was to stay is there for $n" within 30 reported $n 1 a b; done
check "the other still does not write" conflict writes $B
check "the holder does" writes $A
check "what was not to stay is not there" reported $B2 0
check "and the other writes" writes $B2
check "it preempts" acquire $B --crkey=0xb --prkey=0xa --rtype=1 --racqa=1
check "it writes" writes $B
check "who held it does not" conflict writes $A
check "the daemon is killed and started once more" host restart
for n in $A $B; do check "who preempted still holds it, says $n" within 30 reported $n 1 b; done
for c in $a $b; do disconnect $c; done
check "no complaint in the kernel log" quiet_log
exit 0
"""


def boot(report, folder, kernel):
    port, kept_port = test_tcp.free_port(), test_tcp.free_port()
    folders = [os.path.join(folder, name) for name in ("near", "kept")]
    for each in folders:
        os.mkdir(each)
    near = {"near": [sluice.Namespace("file", "%dMiB" % NEAR_MIB, path=folder + "/near.img")]}
    kept = {"kept": [sluice.Namespace("file", "%dMiB" % KEPT_MIB, path=folder + "/kept.img"),
                     sluice.Namespace("file", "%dMiB" % FORGETFUL_MIB, path=folder + "/forgetful.img")]}
    facts = "PORT=%d NEAR=%s NEAR_SECTORS=%d" % (port, NEAR, NEAR_MIB << 11)
    facts += " KEPT_PORT=%d KEPT=%s KEPT_SECTORS=%d FORGETFUL_SECTORS=%d" % (
        kept_port, KEPT, KEPT_MIB << 11, FORGETFUL_MIB << 11)
    script = "\n".join((test_tcp.SCRIPT, facts, HOSTS, NEAR_STEPS, KEPT_STEPS))
    network = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
    with sluice.Daemon(folders[0], near, tcp={"near": NEAR}, port=port, both=("near",)) as daemon, \
            sluice.Daemon(folders[1], kept, tcp={"kept": KEPT}, port=kept_port) as mortal:

        def restart():
            mortal.kill()
            mortal.start()

        run = guest.Guest(kernel, script, daemon.sockets(), timeout_s=TIMEOUT_S, qemu_args=network,
                          steps={"restart": restart}, kernel_args="nvme_core.multipath=N")
        report.booted(run, "Linux %s" % kernel, daemon, mortal)


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        report.theme("reservations: Linux %s as three hosts" % kernel)
        report.scratch("reservations", boot, kernel)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run))
