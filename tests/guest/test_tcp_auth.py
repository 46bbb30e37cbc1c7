#!/usr/bin/env python3
"""Hosts and drives on the network that prove who they are (DH-HMAC-CHAP), with the kernel at the other end of both.

  test_tcp_auth.py [--kernels 6.12 7.3] [--full]

First the guest is a host of our drive, then its nvmet is a subsystem that our drive ends at. The keys are nvme-cli's.
Linux 6.1 has no authentication. --full is every group; each is a few seconds of the guest's arithmetic.
"""

import json
import os
import sys
import time

import guest
import sluice
import test_tcp
import test_tcp_host
from report import by_kernels

TIMEOUT_S = 240
FULL_TIMEOUT_S = 600
KERNELS = ("6.12", "7.3")
VAULT = "nqn.2024-01.org.example:vault"
VAULT_MIB = 48
HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
LOG_LIMIT_S = 5

KEYS = """
# key HMAC NQN : a key as a user makes it
key() { nvme gen-dhchap-key --hmac=$1 --nqn=$2 2>/dev/null | tail -n 1; }
ours=$(key 1 $HOST); theirs=$(key 3 $VAULT); other=$(key 2 $HOST)
"""

AS_HOST = """
enter() { connect $VAULT ,nr_io_queues=1,reconnect_delay=1$1; }
refused() { ! enter $1; }

# proved HASH GROUP [CONTROLLER_KEY] : a host proves who it is, and the drive does if it has a key
proved() {
  what="authenticated, $1, $2${3:+, both ways}"
  check "$what: the daemon opens the drive" host vault $1 $2 $ours $3 || return
  c=$(enter ,dhchap_secret=$ours${3:+,dhchap_ctrl_secret=$3}) || { dmesg | tail -n 20; fail "$what: connect"; return; }
  check "$what: the namespace appears" within 10 disk_of $c 1 $VAULT_SECTORS
  n=$(disk_of $c 1 $VAULT_SECTORS) || { dmesg | tail -n 20; return; }
  check "$what: both queues were" host proofs 2
  check "$what: the daemon says so" host authenticated
  check "$what: fio" verify --bs=16k --rw=randwrite --iodepth=16 --size=4m --filename=/dev/$n --name=a
}
"""

LIFE = """
say "what comes after"
check "ext4" mkfs.ext4 -q -F /dev/$n
check "e2fsck" e2fsck -fn /dev/$n
check "a reset" nvme reset /dev/$c
check "both queues were authenticated for it" host proofs 2
check "fio after it" verify --bs=4k --rw=randwrite --iodepth=16 --size=4m --filename=/dev/$n --name=a
# The kernel proves itself once more for whatever is written there, on queues in use.
again() { echo $ours > /sys/class/nvme/$c/dhchap_secret; }
fio --ioengine=libaio --direct=1 --name=a --filename=/dev/$n --rw=randwrite --bs=4k --iodepth=8 --size=4m --rate_iops=400 \\
  --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal > /tmp/fio 2>&1 &
fio=$!
check "a host proves itself once more, under load" again
check "and is believed" host proofs 1
check "the load saw no error" wait $fio
check "the daemon is killed and started again" host restart
check "the host connects again, and both queues are authenticated" host proofs 2
check "fio after that" verify --bs=4k --rw=randwrite --iodepth=16 --size=4m --filename=/dev/$n --name=a
check "disconnect" disconnect $c

say "hosts and drives with the wrong keys"
check "a host with another key is refused" refused ,dhchap_secret=$other
check "and the daemon says why" host said "did not prove who it is: the keys differ"
check "a host without a key is refused" refused
check "and the daemon says why" host said "did not prove who it is: it went without a word"
check "a drive with another key is not believed" refused ,dhchap_secret=$ours,dhchap_ctrl_secret=$other
check "and the daemon says so" host said "does not believe the drive: the keys differ"
cli() { nvme connect -t tcp -a 10.0.2.2 -s $PORT -n $VAULT -q $HOST -I ${HOST##*:} --nr-io-queues=1 --dhchap-secret=$ours --dhchap-ctrl-secret=$theirs; }
check "nvme connect with the right keys" cli
check "both queues were authenticated" host proofs 2
check "nvme disconnect" nvme disconnect -n $VAULT
"""

AS_TARGET = """
theirs=$(key 3 $REMOTE)
# ask HASH GROUP KEY [CONTROLLER_KEY] : nvmet has one host, which has to prove who it is
ask() {
  entry=$NVMET/hosts/$HOST
  [ -e $entry ] || { mkdir $entry && echo 0 > $NVMET/subsystems/$REMOTE/attr_allow_any_host &&
    ln -s $entry $NVMET/subsystems/$REMOTE/allowed_hosts/$HOST; } || return 1
  echo $3 > $entry/dhchap_key && echo $4 > $entry/dhchap_ctrl_key &&
  echo "hmac($1)" > $entry/dhchap_hash && echo $2 > $entry/dhchap_dhgroup
}
# believed HASH GROUP [CONTROLLER_KEY] : nvmet believes our drive, which believes nvmet if it has a key
believed() {
  check "nvmet asks for a key" ask $1 $2 $ours $theirs
  drive "nvmet, $1, $2${3:+, both ways}" open $ours $3 || return
  check "$what: fio" verify --bs=16k --rw=randwrite --iodepth=16 --size=4m --filename=/dev/$n --name=a
  end
}
"""

MISTAKES = """
check "with another key our host is refused, and says why" host refused $other
check "nvmet with another key is not believed, and we say why" host refused $ours $other
check "without a key our host says what to do" host refused
check "no complaint in the kernel log" quiet_log 'I/O error'
exit 0
"""


def rounds(full):
    """What is tried, on both sides: one way, then both ways."""
    groups = {"ffdhe2048": "sha384", "ffdhe3072": "sha512"}
    if full:
        groups.update({"ffdhe4096": "sha256", "ffdhe6144": "sha384", "ffdhe8192": "sha512"})
    both = [(name, group, "$theirs") for group, name in groups.items()]
    return [("sha256", "null", ""), *both]


class Steps:
    """What the daemon does for the guest."""

    def __init__(self, folder, daemon, remote):
        self.folder, self.daemon, self.remote, self.seen = folder, daemon, remote, 0

    def table(self):
        names = ("vault", "authenticated", "proofs", "said", "restart", "open", "close", "refused")
        return {name: getattr(self, name) for name in names}

    def _key(self, name, key):
        """The path of a key file."""
        path = os.path.join(self.folder, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(key + "\n")
        return path

    def _keys(self, key, controller_key=None):
        keys = {"key": self._key("host.key", key)}
        if controller_key:
            keys["controller_key"] = self._key("controller.key", controller_key)
        return keys

    def _create(self, spec):
        name = spec["name"]
        if name in self.daemon.list():
            self.daemon.command("drive", "delete", name)
        path = os.path.join(self.folder, name + ".json")
        with open(path, "w") as file:
            json.dump(spec, file)
        self.daemon.command("drive", "create", name, "--spec", path)

    # our drive

    def vault(self, hash_name, group, *keys):
        dhchap = {**self._keys(*keys), "hashes": [hash_name], "dh_groups": [group]}
        tcp = {"nqn": VAULT, "hosts": [{"nqn": HOST, "dhchap": dhchap}]}
        self._create({"name": "vault", "tcp": tcp, "namespaces": [
            {"target": "file", "path": os.path.join(self.folder, "vault.img"), "size": "%dMiB" % VAULT_MIB}]})

    def authenticated(self):
        if json.loads(self.daemon.command("drive", "show", "vault", "-o", "json"))["authenticated"] != [HOST]:
            raise guest.GuestError("it does not")

    def proofs(self, count):
        """Waits for so many more connections whose host proved who it is."""
        self._await("a host proved who it is", int(count))

    def said(self, *words):
        self._await("a host " + " ".join(words), 1)

    def _await(self, words, count):
        """Waits until the log has said it so often since it last had what was waited for."""
        limit = time.monotonic() + LOG_LIMIT_S
        while True:
            lines = self.daemon.log_lines(self.seen)
            if sum(words in line for line in lines) >= count:
                self.seen += len(lines)
                return
            if time.monotonic() > limit:
                raise guest.GuestError("the log does not say %r %d times: %s" % (words, count, "".join(lines[-3:])))
            time.sleep(0.05)

    def restart(self):
        self.daemon.kill()
        self.daemon.start()

    # our host

    def open(self, *keys):
        remote = {"address": self.remote, "subnqn": test_tcp_host.REMOTE, "hostnqn": HOST}
        if keys:
            remote["dhchap"] = self._keys(*keys)
        # A file in the guest's memory has blocks of a page.
        namespace = {"target": "nvme-tcp", "block_size": 4096, "nvme_tcp": remote}
        self._create({"name": "ours", "tcp": {"nqn": test_tcp_host.OURS}, "namespaces": [namespace]})

    def close(self):
        self.daemon.command("drive", "delete", "ours")

    def refused(self, *keys):
        try:
            self.open(*keys)
        except guest.GuestError as error:
            if ("the authentication failed" if keys else "name one with `dhchap`") in str(error):
                return
            raise
        raise guest.GuestError("it is let in")


def script(port, full):
    facts = "PORT=%d VAULT=%s VAULT_SECTORS=%d" % (port, VAULT, VAULT_MIB << 11)
    facts += " REMOTE=%s OURS=%s" % (test_tcp_host.REMOTE, test_tcp_host.OURS)
    as_host = '\ncheck "$what: disconnect" disconnect $c\n'.join("proved %s %s %s" % each for each in rounds(full))
    as_target = "\n".join("believed %s %s %s" % each for each in rounds(full))
    return "\n".join((test_tcp.SCRIPT, facts, KEYS, AS_HOST, as_host, LIFE, test_tcp_host.TARGET, AS_TARGET, as_target,
                      MISTAKES))


def boot(report, folder, kernel, full):
    port, forwarded = test_tcp.free_port(), test_tcp.free_port()
    first = {"first": [sluice.Namespace("null", "1MiB")]}
    with sluice.Daemon(folder, first, tcp={"first": "nqn.2024-01.org.example:first"}, port=port,
                       levels="info,sluice_frontend_tcp=debug") as daemon:
        steps = Steps(folder, daemon, "127.0.0.1:%d" % forwarded).table()
        forward = "user,id=net,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:4420" % forwarded
        network = ["-netdev", forward, "-device", "virtio-net-pci,netdev=net,romfile="]
        run = guest.Guest(kernel, script(port, full), timeout_s=FULL_TIMEOUT_S if full else TIMEOUT_S,
                          qemu_args=network, steps=steps)
        report.booted(run, "Linux %s" % kernel, daemon)


def run(report, kernels=("6.12",), full=False):
    for kernel in kernels:
        report.theme("NVMe/TCP: authentication, Linux %s at the other end" % kernel)
        report.scratch("authentication", boot, kernel, full)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run, KERNELS, full=dict(action="store_true", help="every group")))
