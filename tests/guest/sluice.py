"""Everything the guest tests know about the daemon's command line and configuration, in one place."""

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time

import guest

BINARY = os.environ.get("SLUICE") or os.path.join(guest.ROOT, "target", "release", "sluice")
BENCH = os.path.join(os.path.dirname(BINARY), "sluice-bench")
START_LIMIT_S = 15
STOP_LIMIT_S = 15  # longer than a drain may take
INSIDE = "/host/ld-linux-x86-64.so.2 --library-path /host /host/sluice"  # how a guest that has it runs it
BENCH_INSIDE = INSIDE + "-bench"


class Namespace:
    """One `[[drive.namespace]]`. Sizes are words such as "64MiB"; `more` are lines for its other keys."""

    def __init__(self, target, size, block_size=512, path=None, more=()):
        self.target, self.size, self.block_size, self.path, self.more = target, size, block_size, path, more

    def toml(self):
        lines = ["[[drive.namespace]]", 'target = "%s"' % self.target, 'size = "%s"' % self.size]
        lines += ["block_size = %d" % self.block_size]
        if self.path:
            lines += ['path = "%s"' % self.path]
        return lines + list(self.more)


def file_layer(path, size, *functions, block_size=512):
    """A layer of a function, on a file."""
    layer = {"target": "file", "path": path, "size": size, "block_size": block_size}
    return {**layer, "functions": list(functions)} if functions else layer


def service(name, *layers, place="process", options=None, **keys):
    """A function of Sluice's own that is in a process, or in the daemon."""
    function = {"kind": "uif", "function": name, "place": place, **keys}
    if options:
        function["options"] = options
    return {**function, "layers": list(layers)} if layers else function


def inline(value):
    """A value of the configuration file, on one line."""
    if isinstance(value, dict):
        return "{ %s }" % ", ".join("%s = %s" % (key, inline(it)) for key, it in value.items())
    if isinstance(value, (list, tuple)):
        return "[ %s ]" % ", ".join(inline(it) for it in value)
    return json.dumps(value)


def functions(*of):
    """The line of a namespace that has these functions, the topmost first."""
    return "functions = " + inline(of)


class Holder:
    """`sluice-holder` on the socket that a daemon in the same folder finds."""

    def __init__(self, folder):
        self.path, self.process = os.path.join(folder, "holder.sock"), None

    def __enter__(self):
        words = [os.path.join(os.path.dirname(BINARY), "sluice-holder"), self.path]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=guest.die_with_parent)
        limit = time.monotonic() + START_LIMIT_S
        while not os.path.exists(self.path):
            if time.monotonic() > limit:
                raise guest.GuestError("the holder opened no socket in %d s" % START_LIMIT_S)
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        guest.stop(self.process)


class Daemon:
    """`sluice serve` on a private folder. `drives` maps a name to its list of namespaces. Those in `tcp`, which
    maps a name to its NQN, are for hosts on the network, at `port`, or at each of several `ports`; those of them in
    `both` have a socket, too, and those in `keys`, which maps a name to a file of keys, are at the port `tls` instead.
    Of `keys`, those of "discovery" are the discovery service's. `levels` says what is logged (SLUICE_LOG), and `more` maps a name to lines before its namespaces.
    `pools` are thin pools: a name, its file and its size."""

    def __init__(self, folder, drives, cores=(0,), write=True, tcp=None, port=None, both=(), ports=(), tls=None, keys=None,
                 levels="info", more=None, holder=False, binary=BINARY, pools=()):
        self.folder, self.drives, self.cores, self.process, self.more = folder, drives, cores, None, more or {}
        self.pools = pools
        self.holder = os.path.join(folder, "holder.sock") if holder else None
        self.binary = binary  # that starts; orders are given by BINARY
        self.successor = None  # process that has taken over, and is no child of this one
        self.environment = {**os.environ, "SLUICE_LOG": levels}
        self.tcp, self.ports, self.both, self.tls, self.keys = tcp or {}, ports or (port,), both, tls, keys or {}
        self.config, self.api = os.path.join(folder, "sluice.toml"), os.path.join(folder, "api.sock")
        self.log = os.path.join(folder, "sluice.log")
        if write:
            self.declare()

    def declare(self):
        """Writes the configuration file."""
        with open(self.config, "w") as file:
            file.write(self.toml())

    def toml(self):
        """The configuration file."""
        lines = [
            "[daemon]",
            'api = "%s"' % self.api,
            'state = "%s"' % os.path.join(self.folder, "state"),
            'sockets = "%s"' % os.path.join(self.folder, "drives"),
            "cores = [%s]" % ", ".join(str(core) for core in self.cores),
        ]
        if self.holder:
            lines += ['holder = "%s"' % self.holder]
        if self.tcp:
            addresses = ", ".join('"127.0.0.1:%d"' % port for port in self.ports)
            lines += ["", "[tcp]", "listen = [%s]" % addresses]
        if self.tls:
            lines += ['listen_tls = ["127.0.0.1:%d"]' % self.tls]
            if "discovery" in self.keys:
                lines += ['discovery_keys = "%s"' % self.keys["discovery"]]
        for pool in self.pools:
            lines += ["", "[[shared]]", 'name = "%s"\ntype = "thin"\npath = "%s"\nsize = "%s"' % pool]
        for name, namespaces in self.drives.items():
            lines += ["", "[[drive]]", 'name = "%s"' % name]
            if name in self.tcp:
                lines += ["[drive.tcp]", 'nqn = "%s"' % self.tcp[name]]
            if name in self.keys:
                lines += ['tls_keys = "%s"' % self.keys[name]]
            if name in self.both:
                lines += ["[drive.vfio_user]"]
            lines += self.more.get(name, [])
            for namespace in namespaces:
                lines += namespace.toml()
        return "\n".join(lines) + "\n"

    def socket(self, name):
        return os.path.join(self.folder, "drives", name, "cntrl")

    def sockets(self):
        return [self.socket(name) for name in self.drives if name not in self.tcp or name in self.both]

    def start(self):
        """Starts it and waits until every drive's socket listens; says what the log says if that never comes."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.binary, "serve", "-c", self.config], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment, preexec_fn=guest.die_with_parent,
            )
        limit = time.monotonic() + START_LIMIT_S
        while not listening(self.sockets() + [self.api]):
            if self.process.poll() is not None:
                raise guest.GuestError("the daemon ended with %s:\n%s" % (self.process.returncode, self.log_tail()))
            if time.monotonic() > limit:
                raise guest.GuestError("the daemon opened no sockets in %d s:\n%s" % (START_LIMIT_S, self.log_tail()))
            time.sleep(0.02)
        return self

    def log_tail(self, lines=20):
        with open(self.log, errors="replace") as file:
            return "".join(file.readlines()[-lines:])

    def log_lines(self, since=0):
        """What the log says after its first `since` lines."""
        with open(self.log, errors="replace") as file:
            return file.readlines()[since:]

    def complaints(self, expected=()):
        """Errors in the log (and what a panic would leave there), but for lines with words that are expected."""
        with open(self.log, errors="replace") as file:
            lines = [line for line in file if " ERROR " in line or "panicked" in line]
        return "".join(line for line in lines if not any(words in line for words in expected))[:2000]

    def upgrade(self, *options):
        """Another process takes over. The one that was started ends with 0."""
        words = self.command("upgrade", *options).split()
        self.successor = int(words[words.index("process") + 1])
        if self.process:
            if self.process.wait(STOP_LIMIT_S) != 0:
                raise guest.GuestError("the process that handed over ended with %s:\n%s" % (self.process.returncode, self.log_tail()))
            self.process = None

    def stop(self):
        """A polite end (SIGTERM, which drains); returns the exit code."""
        if self.successor:
            handle, self.successor = os.pidfd_open(self.successor), None
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            ended = select.select([handle], [], [], STOP_LIMIT_S)[0]
            if not ended:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
            # It is no child of this process, so its exit code is seen by others only.
            return 0 if ended else -signal.SIGKILL
        return guest.stop(self.process, STOP_LIMIT_S) if self.process else None  # twice does no harm

    def kill(self):
        """A crash."""
        if self.successor:
            handle, self.successor = os.pidfd_open(self.successor), None
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], STOP_LIMIT_S)  # the next one would be refused beside it
            os.close(handle)
        if self.process:
            guest.stop(self.process)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    # the tool

    def command(self, *words):
        """`sluice --api SOCK WORDS...`; returns what it prints."""
        done = subprocess.run([BINARY, "--api", self.api, *words], capture_output=True, text=True, timeout=30)
        if done.returncode != 0:
            raise guest.GuestError("sluice %s: %s" % (" ".join(words), (done.stderr or done.stdout).strip()))
        return done.stdout

    def resize(self, name, nsid, size):
        self.command("drive", "resize", name, "--nsid", str(nsid), "--size", size)

    def set_access(self, name, state, *ports):
        """The ANA state of all namespaces, at these ports or at all."""
        for at in [["--port", "127.0.0.1:%d" % port] for port in ports] or [[]]:
            self.command("drive", "ana", name, "--state", state, *at)

    def list(self):
        return self.command("drive", "list")

    def attach_json(self, name):
        """How a drive is attached, as programs get it."""
        return json.loads(self.command("-o", "json", "drive", "attach", name))

    def attach_arguments(self, name):
        """QEMU's arguments for a drive, from what the daemon prints for users."""
        return shlex.split(self.command("drive", "attach", name, "--print", "qemu"), comments=True)


class Reference:
    """QEMU's own NVMe emulation with the same face as Daemon, to check the tests themselves."""

    def __init__(self, folder, drives):
        self.folder, self.drives = folder, drives

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def qemu_args(self):
        args = []
        for slot, (name, namespaces) in enumerate(self.drives.items(), 4):
            args += ["-device", "nvme,id=%s,serial=%s,addr=%02x.0,max_ioqpairs=8" % (name, name, slot)]
            for nsid, namespace in enumerate(namespaces, 1):
                image = namespace.path or os.path.join(self.folder, "%s-%d.img" % (name, nsid))
                with open(image, "ab") as file:
                    file.truncate(size_bytes(namespace.size))
                node = "%s%d" % (name, nsid)
                args += ["-drive", "if=none,id=%s,file=%s,format=raw,cache=writeback,discard=unmap" % (node, image)]
                args += ["-device", "nvme-ns,drive=%s,bus=%s,nsid=%d,logical_block_size=%d,physical_block_size=%d" % (
                    node, name, nsid, namespace.block_size, namespace.block_size)]
        return args


def listening(paths):
    """Whether sockets listen at all these paths (a file alone may be left over from a killed daemon);
    without connecting, as a drive has one client at a time."""
    accepting = 0x10000  # the kernel's __SO_ACCEPTCON among the flags
    found = set()
    with open("/proc/net/unix") as file:
        for fields in (line.split() for line in file.readlines()[1:]):
            if len(fields) == 8 and int(fields[3], 16) & accepting:
                found.add(fields[7])
    return found.issuperset(paths)


def files_inside(bench=False):
    """For a guest: the binary with its libraries and loader, as the guest's own may be older. See INSIDE, BENCH_INSIDE."""
    listing = subprocess.run(["ldd", BENCH if bench else BINARY], capture_output=True, text=True, check=True).stdout
    paths = re.findall(r"(/\S+) \(0x", listing)
    programs = {"host/sluice-bench": BENCH} if bench else {"host/sluice": BINARY}
    return {**programs, **{"host/" + os.path.basename(path): path for path in paths}}


def size_bytes(text):
    """"64MiB" as a number of bytes."""
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)):
        if text.endswith(unit):
            return int(text[: -len(unit)]) * factor
    return int(text)


def missing():
    """What to say when there is no daemon to test, else None."""
    if shutil.which(BINARY):
        return None
    return "there is no %s: build it first (make build)" % os.path.relpath(BINARY)


def compile_classifier(name, folder):
    """The object that clang makes of one of the project's classifiers."""
    path = os.path.join(folder, name + ".o")
    subprocess.run(
        ["clang", "-target", "bpf", "-O2", "-g", "-mcpu=v3", "-Wall", "-Werror",
         "-I", os.path.join(guest.ROOT, "crates", "ebpf", "include"),
         "-c", os.path.join(guest.ROOT, "classifiers", name + ".c"), "-o", path],
        check=True,
    )
    return path
