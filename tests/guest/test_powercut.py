#!/usr/bin/env python3
"""The power goes while a daemon serves a file drive: every flushed write is there afterwards.

  test_powercut.py [--on ext4|xfs|raw]... [--cuts 6] [--seed N] [--no-daemon] [--control]

The daemon runs inside a guest, its drive on a file (or on the bare disk) of a virtio disk with a
volatile cache, whose every write QEMU logs. A small NVMe host of our own (nvme_host.c) in the same
guest writes stamped blocks through the daemon, flushes now and then, and reports what a flush has
made safe. From the log we then build the disks that a power cut at several moments could have left:
all that was flushed, and a random part of the rest. A second guest mounts each one, starts a
daemon on it, and checks all that had been reported by that moment.

--no-daemon writes to the file directly, to test the test; --control in addition reports writes as
safe that were not flushed, which must be caught.
"""

import argparse
import os
import random
import subprocess
import sys

import guest
import sluice
import writelog
from report import Report

KERNEL = "6.12"
WORKERS, BLOCKS, FLUSH_EVERY, LIMIT = 4, 256, 24, 900  # 4 MiB, written more than once
DISK_MIB = {"ext4": 128, "xfs": 400, "raw": 64}
FOLDER = "/run/p"  # of the daemon, in the guest

COMMON = """
for module in virtio_pci virtio_blk xfs; do modprobe $module 2> /dev/null; done  # or built in
mkdir -p %(folder)s
start() {  # IMAGE : a daemon with a drive on it
  sed "s|@IMAGE@|$1|" /sluice.toml > %(folder)s/sluice.toml
  %(daemon)s serve -c %(folder)s/sluice.toml > %(folder)s/log 2>&1 & daemon=$!
  within 15 test -S %(folder)s/api.sock
  # An image that another guest wrote: its state was there.
  [ -S %(socket)s ] || SLUICE_API=%(folder)s/api.sock %(daemon)s drive open p --adopt
  within 15 test -S %(socket)s || { cat %(folder)s/log; fail "a daemon in the guest"; exit 1; }
}
finish() { kill $daemon; wait $daemon; }
"""
WRITE = """
within 10 test -b /dev/vda
case %(on)s in
  raw) image=/dev/vda ;;
  *) image=/mnt/p.img; mkfs.%(on)s -q /dev/vda && mount -t %(on)s /dev/vda /mnt || exit 1 ;;
esac
sync
%(start)s
/blockstamp write %(device)s %(workers)d %(blocks)d %(flush)d %(limit)d >&9 || { cat %(folder)s/log; exit 1; }
%(finish)s
"""
CHECK = """
failed=0
for n in %(cuts)s; do
  disk=/dev/disk-$n
  for d in /sys/block/vd*; do
    [ "$(cat $d/serial)" != cut$n ] || disk=/dev/${d##*/}
  done
  case %(on)s in
    raw) image=$disk ;;
    *) image=/mnt/p.img; mount -t %(on)s $disk /mnt || { fail "mount after cut $n"; continue; } ;;
  esac
  %(start)s
  /blockstamp check %(device)s %(workers)d %(blocks)d < /stamps$n > /tmp/found 2>&1 || failed=$((failed + 1))
  say "cut $n: $(cat /tmp/found)"
  %(finish)s
  [ %(on)s = raw ] || umount /mnt
done
note lost $failed
"""


class Run:
    """One drive on one kind of disk, written once and cut several times."""

    def __init__(self, folder, on, cuts, seed, direct, control):
        self.folder, self.on, self.cuts, self.direct = folder, on, cuts, direct
        self.chance, self.seed, self.stamps = random.Random(seed), seed, []
        self.disk, self.log = os.path.join(folder, "disk"), os.path.join(folder, "log")
        self.files = {"blockstamp": guest.blockstamp()}
        inside = sluice.Daemon(FOLDER, {"p": [sluice.Namespace("file", "16MiB", 4096, "@IMAGE@")]}, write=False)
        if not direct:
            toml = os.path.join(folder, "sluice.toml")
            with open(toml, "w") as file:
                file.write(inside.toml())
            self.files.update(sluice.files_inside(), **{"sluice.toml": toml})
        self.values = {
            "on": on, "folder": FOLDER, "socket": inside.socket("p"), "workers": WORKERS, "blocks": BLOCKS, "limit": LIMIT,
            "daemon": sluice.INSIDE,
            "device": "$image" if direct else inside.socket("p"), "flush": 0 if control else FLUSH_EVERY,
            "start": "[ -b $image ] || [ -e $image ] || truncate -s 16M $image" if direct else "start $image",
            "finish": "true" if direct else "finish",
        }

    def script(self, body):
        return (COMMON + body) % self.values

    def line(self, line):
        if not line.startswith("stamp "):
            return False
        self.stamps.append((line, os.path.getsize(self.log)))
        return True

    def write(self):
        """The guest that writes; its disk's log and the reports stay."""
        for path in (self.disk, self.log):
            with open(path, "wb") as file:
                file.truncate(DISK_MIB[self.on] << 20 if path == self.disk else 0)
        machine = guest.Guest(KERNEL, self.script(WRITE), qemu_args=writelog.qemu_args(self.disk, self.log),
                              files=self.files, on_line=self.line, timeout_s=300)
        if machine.run() != 0:
            raise guest.GuestError("the writing guest failed:\n" + machine.last_words())
        os.unlink(self.disk)

    def cut_disks(self):
        """Disks as power cuts left them, each with the reports that came before: QEMU's arguments for all."""
        args = []
        with open(self.log, "rb") as log:
            entries = writelog.read_log(log)
            for number in range(self.cuts):
                until = self.chance.randrange(len(self.stamps) // 10, len(self.stamps) - 1)
                moment = self.chance.randint(self.stamps[until][1], self.stamps[until + 1][1])
                path, stamps = (os.path.join(self.folder, "%s%d" % (what, number)) for what in ("cut", "stamps"))
                loose = writelog.cut(log, entries, moment, path, DISK_MIB[self.on] << 20, self.chance.random())
                print("    cut %d: after %d reports, %d writes not flushed" % (number, until + 1, loose), flush=True)
                with open(stamps, "w") as file:
                    file.write("\n".join(line for line, _ in self.stamps[: until + 1]) + "\n")
                self.files["stamps%d" % number] = stamps
                args += ["-blockdev", "driver=file,filename=%s,node-name=cut%d" % (path, number)]
                args += ["-device", writelog.virtio("cut%d" % number)]
        return args

    def check(self):
        """How many of the cuts lost something that had been reported as safe."""
        self.values["cuts"] = " ".join(str(number) for number in range(self.cuts))
        machine = guest.Guest(KERNEL, self.script(CHECK), qemu_args=self.cut_disks(), files=self.files, timeout_s=300)
        if machine.run() != 0 or "lost" not in machine.notes:
            raise guest.GuestError("the checking guest failed:\n" + machine.last_words())
        return int(machine.notes["lost"])


def power_cut(report, on, cuts=6, seed=None, direct=False, control=False):
    seed = random.randrange(1 << 32) if seed is None else seed
    report.theme("power cut: file drive on %s, seed %d" % ({"raw": "a bare disk"}.get(on, on), seed))
    with guest.scratch() as folder:
        try:
            run = Run(folder, on, cuts, seed, direct, control)
            run.write()
            lost = run.check()
        except (guest.GuestError, subprocess.CalledProcessError) as error:
            report.check("power cut on %s" % on, False, str(error))
            return
    if control:
        report.check("control on %s: writes that were not flushed are missed" % on, lost > 0)
    else:
        name = "power cut on %s: every flushed write is there after %d cuts" % (on, cuts)
        report.check(name, lost == 0, "%d cuts lost some" % lost)


def run(report, kinds=("ext4", "raw"), cuts=6):
    for on in kinds:
        power_cut(report, on, cuts)


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", action="append", choices=tuple(DISK_MIB))
    parser.add_argument("--cuts", type=int, default=6)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-daemon", action="store_true")
    parser.add_argument("--control", action="store_true")
    options = parser.parse_args()
    report = Report()
    for on in options.on or DISK_MIB:
        power_cut(report, on, options.cuts, options.seed, options.no_daemon or options.control, options.control)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
