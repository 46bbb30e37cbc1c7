#!/usr/bin/env python3
"""The kernel's own NVMe/TCP host and target with TLS 1.3, and drives with keys.

  test_tls.py [--kernels 6.12 7.3] [--ends host target]

The kernel leaves the handshake to tlshd, and encrypts records itself. Keys are made and kept as an administrator does it: with
nvme-cli, for the daemon in a file. For the other end a drive ends at the guest's own nvmet: what its host verifies goes to
the daemon and back to the kernel, encrypted both times. At either end one has to prove who it is within TLS as well.
"""

import json
import os
import sys

import guest
import sluice
from report import by_kernels
from test_tcp import free_port

TIMEOUT_S = 360
ENDS = ("host", "target")
NQN = {"disk": "nqn.2024-01.org.example:disk", "image": "nqn.2024-01.org.example:image"}
HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
BOTH = "nqn.2024-01.org.example:both"
REMOTE, OURS = "nqn.2024-01.org.example:remote", "nqn.2024-01.org.example:ours"
# All of 32 bytes: GnuTLS before 3.8.11 takes SHA-256 for longer keys as well, which the specification does not.
KEYS = {
    "disk": "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "image": "NVMeTLSkey-1:00://///wQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh91kf2k:",
    "both": "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "discovery": "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "ours": "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
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

# attach NAME NQN OPTIONS
attach() {
  what=$1
  check "$what: connect" connect $2 "$3"
  c=$(controller_of_nqn $2) || { cat /tmp/tlshd.log; host log; dmesg | tail -n 20; fail "$what: no controller"; return; }
  check "$what: the namespace appears" within 20 disk_of $c
  n=$(disk_of $c) || { cat /tmp/tlshd.log; dmesg | tail -n 20; return; }
  check "$what: the daemon says it is encrypted" host encrypted $1
}
# load SIZES : verified
load() {
  for bs in $*; do
    check "$what: fio $bs" verify --bs=$bs --rw=randwrite --iodepth=16 --size=4m --numjobs=2 --offset_increment=8m \\
      --filename=/dev/$n --name=a
  done
}
files() {
  check "$what: mkfs" mkfs.ext4 -q -F /dev/$n
  mkdir -p /mnt/t
  check "$what: mount" mount -t ext4 /dev/$n /mnt/t
  check "$what: verified file" verify --name=f --directory=/mnt/t --bs=16k --rw=randwrite --iodepth=8 --size=4m --fsync=64
  check "$what: umount" umount /mnt/t
  check "$what: e2fsck" e2fsck -fn /dev/$n
}
# leave NQN
leave() {
  check "$what: a reset" nvme reset /dev/$c
  check "$what: fio after the reset" verify --bs=4k --rw=randwrite --iodepth=16 --size=2m --filename=/dev/$n --name=a
  check "$what: disconnect" nvme disconnect -n $1
}
# secret HMAC NQN : for DH-HMAC-CHAP
secret() { nvme gen-dhchap-key --hmac=$1 --nqn=$2 2>/dev/null | tail -n 1; }
US="-q $HOST -I ${HOST##*:}"
# listed OPTIONS : how often the log page says that TLS is used, and has to be
listed() { nvme discover -t tcp -a 10.0.2.2 $US "$@" > /tmp/listed || return 1; cat /tmp/listed
  [ $(grep -c 'sectype: *tls13' /tmp/listed) = 2 ] && [ $(grep -c 'treq: *required' /tmp/listed) = 2 ]; }
of_discovery() { for dir in /sys/class/nvme/nvme*; do [ "$(cat $dir/cntrltype)" = discovery ] && { basename $dir; return; }; done; return 1; }
mine=$(secret 1 $HOST); its=$(secret 2 $BOTH); wrong=$(secret 1 $HOST)
"""

TARGET = """
for module in nvmet nvmet-tcp; do modprobe -q $module; done
mount -t configfs none /sys/kernel/config 2>/dev/null
NVMET=/sys/kernel/config/nvmet
truncate -s 64M /tmp/back
serve() {
  mkdir -p $NVMET/subsystems/$REMOTE/namespaces/1 $NVMET/ports/1 && cd $NVMET/subsystems/$REMOTE &&
  echo 1 > attr_allow_any_host && printf /tmp/back > namespaces/1/device_path &&
  echo 1 > namespaces/1/buffered_io && echo 1 > namespaces/1/enable && cd $NVMET/ports/1 &&
  echo tcp > addr_trtype && echo ipv4 > addr_adrfam && echo 0.0.0.0 > addr_traddr && echo 4420 > addr_trsvcid &&
  echo tls1.3 > addr_tsas && echo required > addr_treq && cd / &&
  ln -s $NVMET/subsystems/$REMOTE $NVMET/ports/1/subsystems/$REMOTE
}
# nvmet knows one host, by a key.
ask() {
  entry=$NVMET/hosts/$HOST
  mkdir $entry && echo 0 > $NVMET/subsystems/$REMOTE/attr_allow_any_host &&
  ln -s $entry $NVMET/subsystems/$REMOTE/allowed_hosts/$HOST &&
  echo $mine > $entry/dhchap_key && echo "hmac(sha384)" > $entry/dhchap_hash && echo ffdhe2048 > $entry/dhchap_dhgroup
}
"""


def host_deeds(plain):
    disk, image = NQN["disk"], NQN["image"]
    return [
        "check 'a key' key %s %s 0" % (disk, KEYS["disk"]),
        "attach disk %s; load 4k 128k 1m; files; leave %s" % (disk, disk),
        "check 'a key of version 1' key %s %s 1" % (image, KEYS["image"]),
        "attach image %s '--hdr-digest --data-digest'; load 128k; leave %s" % (image, image),
        "check 'discover' listed -s %d" % plain,
        "without() { listed -s $PORT --tls && return 1; return 0; }",
        "check 'discover with TLS, without a key' without",
        "check 'a key for the discovery service' key %s %s 1" % (DISCOVERY, KEYS["discovery"]),
        "check 'discover with TLS' listed -s $PORT --tls",
        # The address in the log page is the daemon's on this side of QEMU's network: in the guest, somebody listens there
        # who passes on what comes.
        "for port in %d $PORT; do nc -ll -p $port -e nc 10.0.2.2 $port & done; sleep 1" % plain,
        "everything() { nvme connect-all -t tcp -a 127.0.0.1 $US \"$@\" && controller_of_nqn %s && controller_of_nqn %s; }"
        % (disk, image),
        "everywhere() { check \"$what: both drives are there\" everything \"$@\"; c=$(controller_of_nqn %s)" % disk,
        "check \"$what: the namespace appears\" within 20 disk_of $c; n=$(disk_of $c) && load 16k",
        "check \"$what: the daemon says that it is encrypted\" host encrypted disk; nvme disconnect-all; }",
        "what='connect-all takes from the log page that there is TLS'; everywhere -s %d" % plain,
        "what='connect-all with TLS from the beginning'; everywhere -s $PORT --tls",
        "check 'a discovery that stays, with TLS' listed -s $PORT --tls --persistent",
        "check 'it is there' of_discovery; d=$(of_discovery)",
        "check 'the daemon opens a drive that wants more than TLS' host both $mine $its; sleep 7",
        "told() { [ $(cat /sys/class/nvme/$d/state) = live ] && nvme discover -d $d | grep %s; }" % BOTH,
        "check 'it stays, and has the new drive, too' told",
        "check 'it is disconnected' nvme disconnect -d $d",
        "check 'its key' key %s %s 1" % (BOTH, KEYS["both"]),
        "barred() { connect %s \"$1\" && return 1; return 0; }" % BOTH,
        "check 'TLS alone is not enough' barred",
        "check 'nor is it with a wrong key' barred --dhchap-secret=$wrong",
        "attach both %s \"--dhchap-secret=$mine --dhchap-ctrl-secret=$its\"" % BOTH,
        "check 'both queues and more are authenticated' host authenticated; load 4k 128k; leave %s" % BOTH,
        "refused() { PORT=%d connect %s && return 1; return 0; }" % (plain, disk),
        "check 'an address without TLS' refused",
    ]


TARGET_DEEDS = [
    TARGET,
    "check 'nvmet has a subsystem' serve",
    "check 'a key of its host' key %s %s 1" % (REMOTE, KEYS["ours"]),
    "check 'a key of its drive' key %s %s 1" % (OURS, KEYS["ours"]),
    "check 'the daemon without the key is told so' host refused",
    "check 'the daemon connects to nvmet' host open",
    "attach ours %s; load 4k 1m; leave %s" % (OURS, OURS),
    "check 'the daemon disconnects' host close",
    "check 'nvmet wants a proof as well' ask",
    # Some kernels let TLS be proof enough.
    "case $(uname -r) in 6.*) check 'without a key for that the daemon says what to do' host unproved;; esac",
    "check 'the daemon proves who it is, within TLS' host open $mine",
    "attach ours %s; load 16k; leave %s" % (OURS, OURS),
    "check 'the daemon disconnects' host close",
]


def boot(report, folder, kernel, end):
    port, plain, forwarded = free_port(), free_port(), free_port()
    drives = {name: [sluice.Namespace("memory", "64MiB")] for name in NQN}
    keys = {name: os.path.join(folder, name + ".keys") for name in KEYS}
    for name, path in keys.items():
        with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("%s %s\n" % (HOST, KEYS[name]))
    deeds = host_deeds(plain) if end == "host" else TARGET_DEEDS
    script = ["PORT=%d HOST=%s REMOTE=%s" % (port, HOST, REMOTE), SCRIPT, *deeds, "cat /tmp/tlshd.log",
              "check 'no complaint in the kernel log' quiet_log 'timeout|I/O error'", "exit 0"]
    forward = "user,id=net,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:4420" % forwarded
    network = ["-netdev", forward, "-device", "virtio-net-pci,netdev=net,romfile="]
    of_config = {name: keys[name] for name in (*NQN, "discovery")}
    with sluice.Daemon(folder, drives, tcp=NQN, port=plain, tls=port, keys=of_config) as daemon:
        def encrypted(name):
            shown = daemon.command("drive", "show", name)
            if "TLS_AES_128_GCM_SHA256" not in shown:
                raise guest.GuestError(shown)

        def secret_file(path, text):
            with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(text + "\n")
            return path

        def create(spec):
            path = os.path.join(folder, "spec.json")
            with open(path, "w") as file:
                json.dump(spec, file)
            daemon.command("drive", "create", spec["name"], "--spec", path)

        def both(mine, its):
            files = [secret_file(os.path.join(folder, name), key) for name, key in (("mine", mine), ("its", its))]
            hosts = [{"nqn": HOST, "dhchap": {"key": files[0], "controller_key": files[1]}}]
            create({"name": "both", "tcp": {"nqn": BOTH, "tls_keys": keys["both"], "hosts": hosts},
                    "namespaces": [{"target": "memory", "size": "64MiB"}]})

        def authenticated():
            shown = json.loads(daemon.command("drive", "show", "both", "-o", "json"))
            if shown["authenticated"] != [HOST]:
                raise guest.GuestError(str(shown))

        def opened(secret=None, tls="ours"):
            remote = {"address": "127.0.0.1:%d" % forwarded, "subnqn": REMOTE, "hostnqn": HOST, "tls_keys": keys[tls]}
            if secret:
                remote["dhchap"] = {"key": secret_file(os.path.join(folder, "mine"), secret)}
            # A file in the guest's memory has blocks of a page.
            namespace = {"target": "nvme-tcp", "block_size": 4096, "nvme_tcp": remote}
            create({"name": "ours", "tcp": {"nqn": OURS, "tls_keys": keys["ours"]}, "namespaces": [namespace]})

        def fails(words, *how):
            try:
                opened(*how)
            except guest.GuestError as error:
                if words not in str(error):
                    raise
            else:
                raise guest.GuestError("the drive was opened")

        steps = {
            "open": opened, "close": lambda: daemon.command("drive", "delete", "ours") and "",
            "refused": lambda: fails("the other end refuses the TLS handshake", None, "image"),
            "unproved": lambda: fails("name one with `dhchap`"),
            "both": both, "authenticated": authenticated, "encrypted": encrypted,
            "log": lambda: " ".join(daemon.log_tail(4).split()),
        }
        run = guest.Guest(kernel, "\n".join(script) + "\n", timeout_s=TIMEOUT_S, qemu_args=network, steps=steps)
        report.booted(run, "Linux %s" % kernel, daemon)


def run(report, kernels=("6.12",), ends=("host",)):
    for kernel, end in ((kernel, end) for kernel in kernels for end in ends):
        report.theme("NVMe/TCP with TLS: Linux %s as %s" % (kernel, end))
        report.scratch("NVMe/TCP with TLS", boot, kernel, end)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run, ends=dict(nargs="+", default=ENDS, choices=ENDS)))
