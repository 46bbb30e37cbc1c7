#!/usr/bin/env python3
"""Disks fail under a guest's load and are replaced, a drive moves, and a full pool is grown. The guest sees pauses and nothing else.

  test_redundancy.py [--kernels 6.1 6.12 7.3] [--full_s 60]

One guest has four drives, each with a file system, and verifies direct and synced I/O on one after the other:

  array   parity over three files. One disk fails by itself. The daemon dies too, beside a holder, and the next one has a new
          disk in that place. It is rebuilt and compared. Then a disk is taken out that had never failed.
  mirror  a file and a drive of another daemon, over NVMe/TCP. The other daemon is killed, and one with a blank disk takes its
          place. Everything is copied. Then the first copy is taken out.
  moves   a file. It is copied while it is paused, to another file and then to another daemon.
  thin    a volume of a pool that fills up, stays full for a time, and is grown.

At the end the host compares the copies, and the sum of the array's members, byte by byte.
"""

import json
import os
import shutil
import time

import guest
import sluice
import test_tcp
from report import by_kernels
from test_replicate import eventually, expect

FULL_S = 4
SIZE, MEMBER, BYTES = "64MiB", "32MiB", 32 << 20
FAIL_AFTER = 2500  # commands of the member that fails; each command after them does
DEGRADED_S = 1
NQN = "nqn.2024-01.org.example:"
# Lines of the log before the mirror with a remote disk is begun.
BEGINS = ("mirror does not serve: the log is blank", 'a function cannot start: its commands fail drive="mirror"')

# Each drive with the steps that the host takes under its load.
STEPS = {
    "array": ("array_fails", "array_is_replaced", "array_is_right", "array_without_first", "array_is_whole"),
    "mirror": ("mirror_fails", "mirror_is_replaced", "mirror_without_first", "mirror_is_whole"),
    "moves": ("moves_to_file", "moves_to_network"),
    "thin": ("thin_is_full", "thin_is_grown"),
}

# Loads on each drive. A load is repeated until the drive's steps are over, each time with other
# data, and the longest latencies of all its rounds are compared.
LOAD = """
verified="fio --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal"
jobs_of() {
  case $2 in
    direct) echo "--name=direct --filename=/mnt/$1/direct --direct=1 --bs=4k --rw=randwrite --iodepth=$QUEUE --size=1m --rate_iops=250" ;;
    synced) echo "--name=synced --filename=/mnt/$1/synced --ioengine=psync --sync=1 --bs=4k --rw=write --size=256k --rate_iops=50" ;;
  esac
}
keep() {
  while [ -e /tmp/going ]; do
    round=$((round + 1)); echo $round > /tmp/$1.$2.round
    $verified $(jobs_of $1 $2) --randseed=$round >> /tmp/$1.$2 2>&1 || return 1
  done
}
ends() { wait $1 || { tail -n 5 $2; return 1; }; }
again() { $verified --verify_only $(jobs_of $1 $2) --randseed=$(cat /tmp/$1.$2.round); }
longest() { cat $1 | awk -F';' 'NF > 80 { for (n = 39; n <= 80; n += 41) if ($n + 0 > m) m = $n + 0 } END { printf "%d", m / 1000 }'; }
under_load() {
  drive=$1; shift; round=0
  touch /tmp/going
  keep $drive direct & direct=$!
  keep $drive synced & synced=$!
  for step; do
    sleep 0.5
    if host $step > /tmp/step; then pass "host, under load: $step"; else fail "host, under load: $step: $(cat /tmp/step)"; exit 1; fi
  done
  rm /tmp/going
  check "$drive: direct I/O saw no error, and every byte is right" ends $direct /tmp/$drive.direct
  check "$drive: neither did synced writes" ends $synced /tmp/$drive.synced
  report $drive "$(longest "/tmp/$drive.direct /tmp/$drive.synced") ms in $(cat /tmp/$drive.direct /tmp/$drive.synced | wc -l) rounds"
}
report() { note longest-of-$1 "$2"; say "the longest command of $1 took $2"; }
"""

SCRIPT = LOAD + """
slot=4
for drive in array mirror moves thin; do
  within 15 namespace_of 0000:00:0$slot.0 1 > /dev/null || { fail "$drive appears"; exit 1; }
  disk=$(namespace_of 0000:00:0$slot.0 1); echo $disk > /tmp/$drive.disk
  mkdir -p /mnt/$drive
  mkfs.ext4 -q /dev/$disk && mount -t ext4 /dev/$disk /mnt/$drive || fail "a file system on $drive"
  slot=$((slot + 1))
done
QUEUE=32; under_load array $STEPS_OF_array
QUEUE=16; under_load mirror $STEPS_OF_mirror
QUEUE=8; under_load moves $STEPS_OF_moves
$verified --name=fill --filename=/mnt/thin/fill --direct=1 --bs=64k --rw=write --iodepth=8 --size=24m > /tmp/thin.fill 2>&1 & filling=$!
QUEUE=16; under_load thin $STEPS_OF_thin
check "thin: what filled the pool saw no error, and every byte is right" ends $filling /tmp/thin.fill
waited=$(longest /tmp/thin.fill)
report thin-while-full "$waited ms"
check "thin: it waited for the pool" [ $waited -ge $((FULL_S * 1000)) ]
for drive in array mirror moves thin; do umount /mnt/$drive || fail "umount $drive"; done
echo 3 > /proc/sys/vm/drop_caches
for drive in array mirror moves thin; do
  disk=$(cat /tmp/$drive.disk)
  check "$drive: e2fsck" e2fsck -fn /dev/$disk
  mount -t ext4 /dev/$disk /mnt/$drive || fail "mount $drive again"
  for job in direct synced; do check "$drive: what was written last is there ($job)" again $drive $job; done
  umount /mnt/$drive || fail "umount $drive again"
done
# Linux does not repeat a read-ahead that is answered with Command Interrupted: it is logged, and the block is read again.
seen() { dmesg | grep -v -e 'Cmd(0x2).*sc 0x21' -e '(READ) flags 0x8'; }
clean() { ! seen | faults 'timeout|I/O [Ee]rror|aborting|resetting|Remounting|completed QID|invalid id' | grep .; }
check "no complaint in the kernel log" clean
exit 0
"""


class Disks:
    """The drives, the daemons that serve them, and the steps that the guest asks for."""

    def __init__(self, folder, full_s):
        self.folder, self.full_s, self.port, self.target_port = folder, full_s, test_tcp.free_port(), test_tcp.free_port()
        for name in ("near", "pool", "far", "next", "target"):
            os.mkdir(os.path.join(folder, name))
        self.far = self.elsewhere("far", "mirror", self.port)
        self.near = sluice.Daemon(self.at("near"), {
            "array": [self.array(self.at("near/1.img"), {
                "kind": "fault", "outcome": "fail", "status": "write_fault", "skip": FAIL_AFTER})],
            "mirror": [self.mirror()],
            "moves": [sluice.Namespace("file", SIZE, 512, self.at("near/moves.img"))],
        }, holder=True)
        self.pool = sluice.Daemon(self.at("pool"), {"thin": [sluice.Namespace("thin", SIZE, more=[
            'shared = "bulk"', 'volume = "thin"', 'on_full = "park"'])]}, pools=[("bulk", self.at("pool/bulk.img"), "20MiB")])
        self.elsewhere_now = []

    def at(self, name):
        return os.path.join(self.folder, name)

    def elsewhere(self, place, drive, port):
        """A daemon of another machine, at whose port a drive is."""
        namespace = sluice.Namespace("file", SIZE, 512, self.at(place + "/disk.img"))
        return sluice.Daemon(self.at(place), {drive: [namespace]}, tcp={drive: NQN + drive}, port=port)

    def array(self, second, *functions):
        layers = [sluice.file_layer(second, MEMBER, *functions), sluice.file_layer(self.at("near/2.img"), MEMBER),
                  sluice.file_layer(self.at("near/array.log"), "8MiB")]
        function = sluice.service("parity", *layers, labels=True, options={"parity": "1", "chunk": "64KiB"})
        return sluice.Namespace("file", MEMBER, 512, self.at("near/0.img"), [sluice.functions(function)])

    def mirror(self):
        remote = {"address": "127.0.0.1:%d" % self.port, "subnqn": NQN + "mirror", "size": SIZE, "timeout_s": 2,
                  "fast_io_fail_s": 0}
        function = sluice.service("mirror", {"target": "nvme-tcp", "nvme_tcp": remote},
                                  sluice.file_layer(self.at("near/mirror.log"), "4MiB"), place="daemon")
        return sluice.Namespace("file", SIZE, 512, self.at("near/mirror.img"), [sluice.functions(function)])

    def begin(self):
        """Opens the drives, and opens them once more: a member of a set that was opened once, and whose daemon was killed then,
        cannot be replaced. A set with a remote disk begins by an order."""
        self.near.start()
        self.tell("mirror", "copy from 0")
        self.in_sync("mirror")
        self.near.stop()
        self.near.start()

    def tell(self, drive, order):
        return self.near.command("function", "tell", drive, order)

    def status(self, drive):
        return json.loads(self.tell(drive, "status"))

    def in_sync(self, drive):
        eventually("the %s is in sync" % drive, lambda: self.status(drive)["state"] == "in sync")

    def is_lost(self, drive):
        """Waits until the second disk is lost and the load goes on without it."""
        try:
            eventually("the disk is lost", lambda: self.status(drive)["members"][1] == "lost")
        except guest.GuestError as error:
            raise guest.GuestError("%s: %s" % (error, self.status(drive))) from None
        time.sleep(DEGRADED_S)
        # The disk is tried again from time to time.
        lacks = lambda status: status["state"] == "degraded" and status["stale_bytes"] > 0
        eventually("the disk is lost and lacks something", lambda: lacks(self.status(drive)))

    def without_first(self, drive):
        """Takes the first disk out, so the new disk is read."""
        self.tell(drive, "fail 0")
        time.sleep(DEGRADED_S)
        status = self.status(drive)
        expect("only the first disk is out: %s" % status, status["members"][0] == "out" and "lost" not in status["members"])

    def is_whole(self, drive):
        self.tell(drive, "resync 0")
        self.in_sync(drive)

    def array_fails(self):
        self.is_lost("array")

    def array_is_replaced(self):
        """With its own path, as the configuration is read anew: the daemon died."""
        new = self.at("near/new.img")
        self.near.kill()
        with open(new, "xb"):
            self.near.command("member", "replace", "--set", self.at("near/0.img"), "--index", "1", new)
        self.near.drives["array"] = [self.array(new)]
        self.near.declare()
        self.near.start()
        self.in_sync("array")

    def array_is_right(self):
        self.tell("array", "check")
        eventually("the comparison ends", lambda: not self.status("array")["check"]["running"])
        found = self.status("array")["check"]
        expect("the parities are right: %s" % found, found["bytes"] > 0 and found["different"] == found["unreadable"] == 0)

    def array_without_first(self):
        self.without_first("array")

    def array_is_whole(self):
        self.is_whole("array")

    def mirror_fails(self):
        self.far.kill()
        self.is_lost("mirror")

    def mirror_is_replaced(self):
        """By a machine at the same address. Storage that is open never becomes another: the drives are opened by a new daemon."""
        self.far = self.elsewhere("next", "mirror", self.port)
        self.elsewhere_now.append(self.far.start())
        self.near.upgrade()
        self.in_sync("mirror")

    def mirror_without_first(self):
        self.without_first("mirror")

    def mirror_is_whole(self):
        self.is_whole("mirror")

    def paused(self):
        """Pauses the target, and waits until its data stays as it is."""
        self.near.command("target", "pause", "moves")
        eventually("nothing is in the target", lambda: json.loads(
            self.near.command("-o", "json", "target", "list", "moves"))["targets"][0]["idle"])

    def moves_to_file(self):
        self.paused()
        shutil.copyfile(self.at("near/moves.img"), self.at("near/moved.img"))
        self.near.command("target", "replace", "moves", "--file", self.at("near/moved.img"), "--different-storage")

    def moves_to_network(self):
        self.paused()
        shutil.copyfile(self.at("near/moved.img"), self.at("target/disk.img"))
        self.elsewhere_now.append(self.elsewhere("target", "moves", self.target_port).start())
        self.near.command("target", "replace", "moves", "--nvme-tcp", "127.0.0.1:%d" % self.target_port,
                          "--subnqn", NQN + "moves", "--different-storage")

    def space(self):
        """Bytes of the pool that are free."""
        return sluice.size_bytes(str(json.loads(self.pool.command("-o", "json", "shared", "list"))["shared"][0]["free"]))

    def thin_is_full(self):
        eventually("the pool is full", lambda: self.space() == 0)
        time.sleep(self.full_s)
        expect("it is full, still", self.space() == 0)

    def thin_is_grown(self):
        self.pool.command("shared", "grow", "bulk", "--size", "64MiB")

    def steps(self):
        return {step: getattr(self, step) for steps in STEPS.values() for step in steps}


def equal(*paths, size=BYTES):
    """Whether these files begin with the same bytes, some of which are no zeros."""
    first, *others = (_read(path, size) for path in paths)
    return any(first) and all(first == other for other in others)


def sum_is_zero(*paths, size=BYTES):
    """Whether the exclusive or of these files is zero, and none of them is."""
    numbers, total = [int.from_bytes(_read(path, size), "little") for path in paths], 0
    for number in numbers:
        total ^= number
    return total == 0 and all(numbers)


def _read(path, size):
    with open(path, "rb") as file:
        return file.read(size)


def boot(report, folder, kernel, full_s):
    disks = Disks(folder, full_s)
    far = disks.far
    try:
        with sluice.Holder(disks.near.folder), far, disks.pool:
            disks.begin()
            script = "FULL_S=%d\n" % full_s + "".join('STEPS_OF_%s="%s"\n' % (drive, " ".join(steps)) for drive, steps in STEPS.items())
            run = guest.Guest(kernel, script + SCRIPT, disks.near.sockets() + disks.pool.sockets(), timeout_s=full_s + 400,
                              steps=disks.steps())
            if not report.guest(run, "redundancy"):
                raise guest.GuestError("the rest needs a guest that ran to its end:\n" + disks.near.log_tail())
            places = disks.near.command("target", "list", "moves")
            report.check("redundancy: the drive has moved to the network", NQN + "moves" in places and "ready" in places, places)
            report.ended(disks.near, "redundancy: ", expected=BEGINS)
            report.ended(disks.pool, "redundancy, the pool: ")
            for daemon in disks.elsewhere_now:
                report.ended(daemon, "redundancy, elsewhere: ")
    finally:
        for daemon in [disks.near, *disks.elsewhere_now]:
            daemon.stop()
    report.check("redundancy: both copies are equal",
                 equal(disks.at("near/mirror.img"), disks.at("next/disk.img"), size=sluice.size_bytes(SIZE)))
    report.check("redundancy: the members of the array have the right sum",
                 sum_is_zero(*(disks.at("near/%s.img" % name) for name in ("0", "new", "2"))))


def run(report, kernels=("6.12",), full_s=FULL_S):
    for kernel in kernels:
        report.theme("disks that fail, a drive that moves, a pool that is full for %d s, Linux %s" % (full_s, kernel))
        report.scratch("redundancy", boot, kernel, full_s)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, full_s={"type": int, "default": FULL_S}))
