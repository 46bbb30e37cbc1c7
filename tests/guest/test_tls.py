#!/usr/bin/env python3
"""The kernel's own NVMe/TCP host with TLS 1.3, and a drive whose hosts have keys.

  test_tls.py [--kernels 6.12 7.3]

The kernel leaves the handshake to tlshd, and encrypts records itself. Keys are made and kept as an administrator does it: with
nvme-cli, for the daemon in a file.
"""

import argparse
import os
import sys

import guest
import sluice
from report import Report
from test_tcp import free_port

TIMEOUT_S = 240
NQN = {"disk": "nqn.2024-01.org.example:disk", "image": "nqn.2024-01.org.example:image"}
HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
# Both of 32 bytes: GnuTLS before 3.8.11 takes SHA-256 for longer keys as well, which the specification does not.
KEYS = {
    "disk": "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "image": "NVMeTLSkey-1:00://///wQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh91kf2k:",
}

SCRIPT = """
# The kernel finds no modprobe here: what its TLS needs is loaded by name.
for module in virtio_pci virtio_net gcm ghash_generic ctr tls nvme-tcp ext4; do modprobe -q $module; done
modprobe -q crc32c-intel || modprobe -q crc32c_generic
within 5 [ -e /sys/class/net/eth0 ] || { fail "a network device appears"; exit 1; }
ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up
mkdir -p /etc/nvme /run; echo $HOST > /etc/nvme/hostnqn; echo ${HOST##*:} > /etc/nvme/hostid
printf '[debug]\\nloglevel=0\\ntls=0\\nnl=0\\n[authenticate]\\nkeyrings=.nvme\\n' > /etc/tlshd.conf
tlshd --stderr --config /etc/tlshd.conf 2> /tmp/tlshd.log &

# key NQN KEY VERSION : for the kernel's host
key() { nvme check-tls-key --subsysnqn="$1" --hostnqn="$HOST" --keydata="$2" --identity="$3" --insert; }
connect() { nvme connect -t tcp -a 10.0.2.2 -s "$PORT" -n "$1" --hostnqn="$HOST" --hostid="${HOST##*:}" --tls --nr-io-queues=2 $2; }
controller_of_nqn() { for dir in /sys/class/nvme/nvme*; do [ "$(cat $dir/subsysnqn)" = "$1" ] && { basename $dir; return; }; done; return 1; }
disk_of() { for dir in /sys/class/nvme/$1/nvme*n1 /sys/class/nvme-subsystem/*/nvme*n1; do
  [ -e $dir ] && [ -e /dev/$(basename $dir) ] && { basename $dir; return; }; done; return 1; }
verify() { fio --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal "$@"; }

# use NAME NQN OPTIONS : all that a host does with a drive
use() {
  what=$1
  check "$what: connect" connect $2 "$3"
  c=$(controller_of_nqn $2) || { cat /tmp/tlshd.log; host log; dmesg | tail -n 20; fail "$what: no controller"; return; }
  check "$what: the namespace appears" within 20 disk_of $c
  n=$(disk_of $c) || { cat /tmp/tlshd.log; dmesg | tail -n 20; return; }
  check "$what: the daemon says it is encrypted" host encrypted $1
  for bs in 4k 128k 1m; do
    check "$what: fio $bs" verify --bs=$bs --rw=randwrite --iodepth=16 --size=4m --numjobs=2 --offset_increment=8m \\
      --filename=/dev/$n --name=a
  done
  check "$what: mkfs" mkfs.ext4 -q -F /dev/$n
  mkdir -p /mnt/t
  check "$what: mount" mount -t ext4 /dev/$n /mnt/t
  check "$what: verified file" verify --name=f --directory=/mnt/t --bs=16k --rw=randwrite --iodepth=8 --size=4m --fsync=64
  check "$what: umount" umount /mnt/t
  check "$what: e2fsck" e2fsck -fn /dev/$n
  check "$what: a reset" nvme reset /dev/$c
  check "$what: fio after the reset" verify --bs=4k --rw=randwrite --iodepth=16 --size=2m --filename=/dev/$n --name=a
  check "$what: disconnect" nvme disconnect -n $2
}
"""


def boot(report, folder, kernel):
    port, plain = free_port(), free_port()
    drives = {name: [sluice.Namespace("memory", "64MiB")] for name in NQN}
    keys = {name: os.path.join(folder, name + ".keys") for name in NQN}
    for name, path in keys.items():
        with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("%s %s\n" % (HOST, KEYS[name]))
    script = [
        "PORT=%d HOST=%s" % (port, HOST), SCRIPT,
        "check 'a key' key %s %s 0" % (NQN["disk"], KEYS["disk"]),
        "use disk %s" % NQN["disk"],
        "check 'a key of version 1' key %s %s 1" % (NQN["image"], KEYS["image"]),
        "use image %s '--hdr-digest --data-digest'" % NQN["image"],
        "discovered() { nvme discover -t tcp -a 10.0.2.2 -s %d -q $HOST -I ${HOST##*:} | grep -q 'sectype: *tls13'; }" % plain,
        "check 'discover' discovered",
        "refused() { PORT=%d connect %s && return 1; return 0; }" % (plain, NQN["disk"]),
        "check 'an address without TLS' refused",
        "cat /tmp/tlshd.log",
        "quiet_log() { ! dmesg | grep -E 'timeout|I/O error|Call Trace|BUG:|WARNING:'; }",
        "check 'no complaint in the kernel log' quiet_log",
        "exit 0",
    ]
    network = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
    with sluice.Daemon(folder, drives, tcp=NQN, port=plain, tls=port, keys=keys) as daemon:
        def encrypted(name):
            shown = daemon.command("drive", "show", name)
            if "TLS_AES_128_GCM_SHA256" not in shown:
                raise guest.GuestError(shown)

        steps = {"encrypted": encrypted, "log": lambda: " ".join(daemon.log_tail(4).split())}
        run = guest.Guest(kernel, "\n".join(script) + "\n", timeout_s=TIMEOUT_S, qemu_args=network, steps=steps)
        if not report.guest(run, "Linux %s" % kernel):
            print(daemon.log_tail())
        ended = daemon.stop()
        report.check("the daemon ends cleanly", ended == 0, "exit code %s" % ended)
        report.check("the daemon's log has no errors", not daemon.complaints(), daemon.complaints())


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        report.theme("NVMe/TCP with TLS: Linux %s as host" % kernel)
        with guest.scratch() as folder:
            try:
                boot(report, folder, kernel)
            except guest.GuestError as error:
                report.check("NVMe/TCP with TLS", False, str(error))


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=("6.12",), choices=guest.KERNELS)
    options = parser.parse_args()
    report = Report()
    run(report, options.kernels)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
