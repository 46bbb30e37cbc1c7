#!/usr/bin/env python3
"""Verified I/O of a guest through each storage function, and through stacks of three. The daemon dies under load, and is upgraded.

  test_stacks.py [--kernels 6.1 6.12 7.3] [--places_of process daemon] [--deaths 2] [--again]

One guest has all of it: a drive for each group of functions, with a namespace for each function alone, and a drive for each
stack. Two daemons serve them. The first one is killed, beside a holder. The other one has the volumes of a thin pool, and
is upgraded. Everything is verified when it is written, and again after the deaths without the guest's caches. With `--again`
both daemons are killed then, and a second guest verifies everything once more through those that come next.
"""

import hashlib
import json
import os
import time

import guest
import sluice
from report import by_kernels
from test_redundancy import equal, sum_is_zero
from test_replicate import eventually

DEATHS = 2
BETWEEN_S = 0.5
GROUP = 9  # disks that have a load at once
TIMEOUT_S = 300
MIB = 1 << 20
SIZE = "16MiB"

# The places of the two jobs and of the deallocation do not overlap. The file `at` has the name, PCI address and NSID of each disk.
SCRIPT = """
disks=
while read name address nsid; do
  within 15 namespace_of $address $nsid > /dev/null || { fail "$name appears"; exit 1; }
  disks="$disks $name:$(namespace_of $address $nsid)"
done < /at
verified="fio --ioengine=libaio --thread --direct=1 --verify=crc32c --verify_fatal=1 --minimal"
small="--bs=4k --rw=randwrite --iodepth=8 --offset=0 --size=512k"
large="--bs=64k --rw=write --iodepth=4 --offset=4m --size=2m --fsync=8"
# on_all JOB SEED ARGS... : a job on each disk of $these; a disk's own error is the fifth word of its line
on_all() {
  job=$1 seed=$2; shift 2; all=
  for disk in $these; do all="$all --name=${disk%:*} --filename=/dev/${disk#*:} $job --randseed=$seed"; done
  $verified "$@" $all > /tmp/out 2> /tmp/err
  code=$?
  awk -F';' 'NF > 80 && $5 != 0 { print "of " $3 ": error " $5 }' /tmp/out; cat /tmp/err
  [ $code = 0 ] && [ "$(grep -c ';' /tmp/out)" = "$(echo $these | wc -w)" ]
}
# in_groups JOB SEED ARGS... : that for some disks at once, and then the next ones
in_groups() {
  rest=$disks; good=0
  while [ -n "$rest" ]; do
    these=$(echo $rest | cut -d' ' -f 1-$GROUP); rest=$(echo $rest | cut -s -d' ' -f $((GROUP + 1))-)
    on_all "$@" || good=1
  done
  return $good
}
deallocate() {
  for disk in $disks; do blkdiscard -o 8M -l 1M /dev/${disk#*:} || echo "$disk: $?"; done > /tmp/discarded 2>&1
  ! grep . /tmp/discarded
}
read_only() {
  disk=$(namespace_of $READONLY); dd if=/dev/$disk bs=1M count=4 iflag=direct 2>/dev/null | sha256sum | grep -q $SUM || return 1
  [ "$(cat /sys/block/$disk/ro)" = 1 ]
}
round=${AGAIN:-1}
check "readonly: what is there is read, and cannot be written" read_only
if [ -z "$AGAIN" ]; then
  check "small writes are right" in_groups "$small --rate_iops=400" $round --do_verify=1
  check "large writes are right" in_groups "$large" 2 --do_verify=1
  check "blocks between them are deallocated" deallocate
  keep() {
    while [ ! -e /tmp/enough ]; do
      round=$((round + 1))
      on_all "$small --rate_iops=40" $round --do_verify=1 || return 1
      cat /tmp/out >> /tmp/rounds
    done
    echo $round > /tmp/round
  }
  these=$disks
  keep > /tmp/load 2>&1 & load=$!
  sleep 1
  check "host kills a daemon and upgrades the other one, $DEATHS times" host deaths
  touch /tmp/enough
  ends() { wait $load || { cat /tmp/load; return 1; }; }
  check "writes meanwhile saw no error, and every byte is right" ends
  round=$(cat /tmp/round)
  note longest "$(awk -F';' '{ for (n = 39; n <= 80; n += 41) if ($n + 0 > m) { m = $n + 0; of = $3 } } END { printf "%d ms, of %s", m / 1000, of }' /tmp/rounds)"
  note round $round
fi
echo 3 > /proc/sys/vm/drop_caches
for disk in $disks; do blockdev --flushbufs /dev/${disk#*:}; done
check "small writes are there, still" in_groups "$small" $round --verify_only
check "large writes are there, still" in_groups "$large" 2 --verify_only
check "no complaint in the kernel log" quiet_log 'timeout|I/O [Ee]rror|aborting|resetting|completed QID|invalid id'
exit 0
"""


class Files:
    """Makes namespaces, layers and functions on files in a folder. Functions of Sluice's own are in this place."""

    def __init__(self, folder, place):
        self.folder, self.place, self.key = folder, place, os.path.join(folder, "key")
        with open(os.open(self.key, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(bytes(range(64)))

    def at(self, name):
        return os.path.join(self.folder, name + ".img")

    def namespace(self, name, *functions, size=SIZE, block_size=512):
        return sluice.Namespace("file", size, block_size, self.at(name), [sluice.functions(*functions)])

    def volume(self, name, *functions, size=SIZE):
        more = ['shared = "bulk"', 'volume = "%s"' % name] + ([sluice.functions(*functions)] if functions else [])
        return sluice.Namespace("thin", size, more=more)

    def layers(self, name, count, size=SIZE, *functions, log=None, block_size=512):
        """So many layers on files, and a log."""
        layers = [sluice.file_layer(self.at("%s-%d" % (name, number)), size, *functions, block_size=block_size)
                  for number in range(1, count + 1)]
        return layers + ([sluice.file_layer(self.at(name + "-log"), log)] if log else [])

    def service(self, name, *layers, labels=None, **options):
        keys = {} if labels is None else {"labels": labels}
        return sluice.service(name, *layers, place=self.place, options=options, **keys)

    def encrypt(self):
        return self.service("encrypt", key_file=self.key)

    def checksum(self):
        return self.service("checksum")

    def parity(self, name, parities, labels=None):
        layers = self.layers(name, 1 + parities, "8MiB", log="4MiB")
        return self.service("parity", *layers, labels=labels, parity=str(parities), chunk="16KiB")

    def mirror(self, name, count=1, *functions, size=SIZE, block_size=512):
        return self.service("mirror", *self.layers(name, count, size, *functions, log="4MiB", block_size=block_size))

    def cache(self, name, mode):
        return self.service("local-cache", *self.layers(name, 1, "4MiB"), mode=mode, line="16KiB")


def alone(files):
    """Namespaces with one function each, by drive and name."""
    def on(name, kind, of=SIZE, **keys):
        return files.namespace(name, {"kind": kind, **keys}, size=of)

    return {
        "layers": {
            "pass": on("pass", "pass"),
            "delay": on("delay", "delay", read_us=300, write_us=300, flush_us=1000),
            "qos": on("qos", "qos", limits={"iops": 300}),
            "priority": on("priority", "priority", **{"class": "background"}),
            "cache": on("cache", "cache", "16MiB"),
            "range": on("range", "range", "32MiB", **{"from": MIB, "size": SIZE}),
        },
        "parts": {
            "stripe": on("stripe", "stripe", "8MiB", labels=True, layers=files.layers("stripe", 1, "8MiB")),
            "concat": on("concat", "concat", "5MiB", labels=True, layers=files.layers("concat", 1, "11MiB")),
            "map": on("map", "map", "8MiB", chunk="1MiB", counts=[8, 8], place="spread", layers=files.layers("map", 1, "8MiB")),
        },
        "sets": {
            "replicate": files.namespace("replicate", files.service("replicate", *files.layers("replicate", 1, log="4MiB"))),
            "mirror": files.namespace("mirror", files.mirror("mirror", 2)),
            "parity": files.namespace("parity", files.parity("parity", 1, labels=True), size="8MiB"),
            "parities": files.namespace("parities", files.parity("parities", 2, labels=True), size="8MiB"),
        },
        "data": {
            "service": files.namespace("service", files.service("pass")),
            "encrypt": files.namespace("encrypt", files.encrypt()),
            "checksum": files.namespace("checksum", files.checksum(), size="20MiB", block_size=4096),
            "atomic": files.namespace("atomic", files.service("atomic", *files.layers("atomic", 1, "2MiB"))),
        },
        "stores": {
            "write-back": files.namespace("write-back", files.cache("write-back", "write-back")),
            "write-through": files.namespace("write-through", files.cache("write-through", "write-through")),
            "snapshot": files.namespace("snapshot", files.service("snapshot", size=SIZE), size="32MiB"),
        },
        "protected": {"readonly": on("readonly", "readonly")},
    }


def stacks(files):
    """Namespaces with three functions each, by their names."""
    poison = files.service("poison", seed="7", flip_read="0.1")
    fault = {"kind": "fault", "outcome": "fail", "status": "unrecovered_read_error", "operations": ["read"], "every": 40}
    delay, qos = {"kind": "delay", "write_us": 200}, {"kind": "qos", "limits": {"iops": 1000}}
    below = {
        "encrypt-checksum-mirror": ("20MiB", 4096, files.encrypt(), files.checksum(),
                                    files.mirror("ecm", size="20MiB", block_size=4096)),
        "qos-snapshot-cache": ("32MiB", 512, qos, files.service("snapshot", size=SIZE), {"kind": "cache", "size": "1MiB"}),
        "qos-mirror-parity": ("8MiB", 512, qos, files.mirror("qmp"), files.parity("qmp-below", 1)),
        "mirror-checksum-poison": ("20MiB", 4096, files.mirror("mcp", 1, files.checksum(), size="20MiB", block_size=4096),
                                   files.checksum(), poison),
        "parity-delay-fault": ("8MiB", 512, files.parity("pdf", 1), delay, fault),
        "encrypt-replicate-stripe": ("8MiB", 512, files.encrypt(),
                                     files.service("replicate", *files.layers("ers", 1, log="4MiB")),
                                     {"kind": "stripe", "layers": files.layers("ers-below", 1, "8MiB")}),
        "encrypt-snapshot-concat": ("12MiB", 512, files.encrypt(), files.service("snapshot", size=SIZE),
                                    {"kind": "concat", "layers": files.layers("esc", 1, "20MiB")}),
        "encrypt-atomic-parity": ("8MiB", 512, files.encrypt(), files.service("atomic", *files.layers("eap", 1, "2MiB")),
                                  files.parity("eap-below", 2)),
        "cache-cache-map": ("8MiB", 512, {"kind": "cache", "size": "1MiB"}, files.cache("ccm", "write-through"),
                            {"kind": "map", "chunk": "1MiB", "counts": [8, 8], "place": "spread",
                             "layers": files.layers("ccm-below", 1, "8MiB")}),
        "priority-pass-range": ("32MiB", 512, {"kind": "priority"}, files.service("pass"),
                                {"kind": "range", "from": MIB, "size": SIZE}),
    }
    return {name: files.namespace(name, *functions, size=size, block_size=block_size)
            for name, (size, block_size, *functions) in below.items()}


def volumes(files):
    """Volumes of a pool: one alone, and below two functions."""
    return {
        "thin": files.volume("thin"),
        "encrypt-cache-thin": files.volume("ect", files.encrypt(), files.cache("ect", "write-back")),
        "atomic-mirror-thin": files.volume("amt", files.service("atomic", *files.layers("amt", 1, "2MiB")), files.mirror("amt-below")),
        "qos-snapshot-thin": files.volume("qst", {"kind": "qos", "limits": {"iops": 1000}}, files.service("snapshot", size=SIZE),
                                          size="32MiB"),
    }


def places(drives, first_slot):
    """Lines with the name of each namespace, its PCI address and its NSID."""
    return ["%s 0000:00:%02x.0 %d\n" % (name, slot, nsid) for slot, namespaces in enumerate(drives.values(), first_slot)
            for nsid, name in enumerate(namespaces, 1)]


class Setup:
    """The two daemons with all drives. `alone_in` is the place of functions that are alone; those of stacks are in the other one."""

    def __init__(self, folder, alone_in):
        self.content = os.urandom(4 * MIB)
        files, below = Files(folder, alone_in), Files(folder, "process" if alone_in == "daemon" else "daemon")
        with open(files.at("readonly"), "wb") as file:
            file.write(self.content)
        for name in ("killed", "upgraded"):
            os.mkdir(os.path.join(folder, name))
        self.files = files
        # By drive and by the name of each namespace.
        self.of_killed = {**alone(files), **{name: {name: namespace} for name, namespace in stacks(below).items()}}
        self.of_upgraded = {name: {name: namespace} for name, namespace in volumes(below).items()}
        self.killed = self.daemon("killed", self.of_killed, holder=True)
        self.upgraded = self.daemon("upgraded", self.of_upgraded, pools=[("bulk", files.at("bulk"), "128MiB")])

    def daemon(self, name, drives, **more):
        namespaces = {drive: list(namespaces.values()) for drive, namespaces in drives.items()}
        return sluice.Daemon(os.path.join(self.files.folder, name), namespaces, **more)

    def deaths(self, count):
        for _ in range(count):
            self.killed.kill()
            self.killed.start()
            self.upgraded.upgrade()
            time.sleep(BETWEEN_S)

    def guest(self, kernel, deaths, words=""):
        """A guest with all drives, of which one is no disk of a load."""
        at = places({**self.of_killed, **self.of_upgraded}, 4)
        readonly = next(line for line in at if line.startswith("readonly "))
        at.remove(readonly)
        with open(os.path.join(self.files.folder, "at"), "w") as file:
            file.writelines(at)
        words += 'READONLY="%s"\nSUM=%s\nGROUP=%d\nDEATHS=%d\n' % (
            readonly.split(maxsplit=1)[1].strip(), hashlib.sha256(self.content).hexdigest(), GROUP, deaths)
        return guest.Guest(kernel, words + SCRIPT, self.killed.sockets() + self.upgraded.sockets(), timeout_s=TIMEOUT_S + 10 * deaths,
                           steps={"deaths": lambda: self.deaths(deaths)}, files={"at": file.name})

    def idle_functions(self):
        """The functions behind the SDK that have seen no command, and those that have found no trouble where some was made."""
        idle = []
        for daemon, drives in ((self.killed, self.of_killed), (self.upgraded, self.of_upgraded)):
            for drive in drives:
                shown = json.loads(daemon.command("-o", "json", "function", "show", drive))["functions"]
                idle += ["%s of %s" % (function["function"], drive) for function in shown if function["sent"] == 0]
        for drive, function, metric in (("mirror-checksum-poison", "poison", "flipped_total"),
                                        ("parity-delay-fault", "parity", "repairs_total")):
            lines = self.killed.command("function", "tell", drive, "--function", function, "metrics").splitlines()
            if int(dict(line.split() for line in lines)[metric]) == 0:
                idle.append("%s of %s" % (metric, drive))
        return idle

    def in_sync(self):
        for nsid, name in enumerate(self.of_killed["sets"], 1):
            status = lambda: json.loads(self.killed.command(
                "function", "tell", "sets", "--namespace", str(nsid), "status"))
            eventually("the %s is in sync" % name, lambda: status()["state"] == "in sync")


def boot(report, folder, kernel, alone_in, deaths, again):
    setup = Setup(folder, alone_in)
    with sluice.Holder(setup.killed.folder), setup.killed, setup.upgraded:
        run = setup.guest(kernel, deaths)
        report.guest(run, "stacks")
        report.check("stacks: the longest command: %s" % run.notes.get("longest"), "longest" in run.notes)
        if again and "round" in run.notes:
            for daemon in (setup.killed, setup.upgraded):
                daemon.kill()
                daemon.start()
            report.guest(setup.guest(kernel, deaths, "AGAIN=%s\n" % run.notes["round"]), "stacks, in another guest")
        idle = setup.idle_functions()
        report.check("stacks: each function had commands, and the faults were there", not idle, ", ".join(idle))
        setup.in_sync()
        report.ended(setup.killed, "stacks: ")
        report.ended(setup.upgraded, "stacks, volumes: ")
    at, size = setup.files.at, sluice.size_bytes(SIZE)
    report.check("stacks: the copies of replicate are equal", equal(at("replicate"), at("replicate-1"), size=size))
    report.check("stacks: the copies of mirror are equal", equal(at("mirror"), at("mirror-1"), at("mirror-2"), size=size))
    report.check("stacks: the members of parity have the right sum",
                 sum_is_zero(at("parity"), at("parity-1"), at("parity-2"), size=size // 2))


def run(report, kernels=("6.12",), places_of=("process",), deaths=DEATHS, again=False):
    for kernel in kernels:
        for place in places_of:
            report.theme("functions alone, in the %s, and in stacks of three; Linux %s" % (place, kernel))
            report.scratch("stacks", boot, kernel, place, deaths, again)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, places_of={"nargs": "+", "default": ["process"], "choices": ("process", "daemon")},
                                deaths={"type": int, "default": DEATHS}, again={"action": "store_true"}))
