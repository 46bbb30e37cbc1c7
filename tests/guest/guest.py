"""Boots a real Linux kernel in QEMU, runs a script in it, and talks with that script.

The guest has two serial ports: what it prints on the first is streamed for people to read; on the
second it reports checks and asks the host for steps (lib.sh has the other end). Everything a guest
needs is in memory-backed temporary files, and only the one QEMU process is started and ended here.
"""

import ctypes
import hashlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from cpio import Archive

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KERNELS = ("6.1", "6.12", "7.3")
CACHE = os.environ.get("SLUICE_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice"
)
PR_SET_PDEATHSIG = 1
HOSTS = {"load": ("nvme_host.c", "vhost_scsi.c")}  # what tools are made of, beside their own file
CONSOLE_LIMIT = 4 << 20  # what is kept of a guest's console, in bytes


class GuestError(Exception):
    """The guest did not do what it was started for; the message says what was seen instead."""


def run_tool(*command):
    """Runs a script that prints its result (a path) on stdout; its progress goes to our stderr."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout.strip()


def qemu():
    return run_tool(os.path.join(ROOT, "scripts", "get-qemu.sh"))


def die_with_parent():
    """For preexec_fn: no process of ours survives us, even when we are killed outright; and a QEMU
    that aborts because its drive went away leaves no core file of the guest's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_politely():
    """For every main(): SIGTERM unwinds like Ctrl-C, so that what was started and stored is cleared away."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell has it ignored


def stop(process, patience_s=0.0):
    """Ends a process of ours: SIGTERM first when given patience, then SIGKILL. Always reaps it."""
    if process.poll() is None and patience_s > 0:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
    if process.poll() is None:
        process.kill()
    return process.wait()


def scratch(prefix="sluice-"):
    """A private temporary folder on memory where possible: TMPDIR if set, else /dev/shm."""
    where = os.environ.get("TMPDIR") or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    return tempfile.TemporaryDirectory(prefix=prefix, dir=where)


def tool(name):
    """One of our tools for guests, compiled statically."""
    sources = [os.path.join(HERE, file) for file in (name + ".c", *HOSTS.get(name, ("nvme_host.c",)))]
    headers = [os.path.join(HERE, file) for file in ("nvme_host.h", "vhost_scsi.h")]
    return compiled(name, sources, headers, "-static", "-lpthread")


def counter():
    """QEMU's plugin that counts instructions (count_instructions.c)."""
    return compiled("count_instructions", [os.path.join(HERE, "count_instructions.c")], [], "-shared", "-fPIC")


def compiled(name, sources, headers, *flags):
    """A program of these files in the cache (by content, like all of it)."""
    content = hashlib.sha256()
    for source in sources + headers:
        with open(source, "rb") as file:
            content.update(file.read())
    binary = os.path.join(CACHE, "%s-%s" % (name, content.hexdigest()[:12]))
    if not os.path.exists(binary):
        os.makedirs(CACHE, exist_ok=True)
        temporary = "%s.%d" % (binary, os.getpid())
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", temporary, *sources, *flags], check=True)
        os.rename(temporary, binary)
    return binary


def blockstamp():
    """Our stamping tool."""
    return tool("blockstamp")


# --- acceleration ------------------------------------------------------------------------


def acceleration():
    """"kvm" where it works, else "tcg". A /dev/kvm that opens proves nothing, so boot once and see."""
    wanted = os.environ.get("SLUICE_ACCEL")
    if wanted:
        return wanted
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    with open("/proc/sys/kernel/random/boot_id") as file:
        answer = os.path.join(CACHE, "kvm-" + file.read().strip())
    if not os.path.exists(answer):
        works = _kvm_works()
        os.makedirs(CACHE, exist_ok=True)
        with open(answer, "w") as file:
            file.write("kvm" if works else "tcg")
    with open(answer) as file:
        return file.read().strip()


def _kvm_works():
    print("  does KVM work here? ", end="", file=sys.stderr, flush=True)
    try:
        guest = Guest("6.12", "true", accel="kvm", timeout_s=12, quiet=True)
        works = guest.run() == 0
    except GuestError:
        works = False
    print("yes" if works else "no, using emulation (slower)", file=sys.stderr, flush=True)
    return works


# --- the guest ---------------------------------------------------------------------------


def vfio_user(path, slot):
    """QEMU's arguments for the drive behind a vfio-user socket at PCI address 00:SLOT.0."""
    device = {"driver": "vfio-user-pci", "addr": "%02x.0" % slot, "socket": {"type": "unix", "path": path}}
    return ["-device", json.dumps(device)]


class Guest:
    """One boot. `sockets` become PCI devices 00:04.0, 00:05.0 ... in that order.

    `steps` maps the verb of a `host VERB ARGS` line to a function of the arguments, whose return
    value is the answer. `on_line`, when given, sees every line of the second serial port first and
    returns True for those it took. With `counts`, a file, the guest's instructions are counted, and the
    file gets a line for each pair of marks (count_instructions.c). The clock of a guest with one
    processor is then the number of its instructions.
    """

    def __init__(self, kernel, script, sockets=(), cpus=2, memory_mib=1024, timeout_s=180, steps=None,
                 files=None, qemu_args=(), accel=None, quiet=False, on_line=None, out=None, kernel_args="",
                 shared=True, counts=None):
        self.counts = counts
        self.kernel, self.script, self.cpus, self.memory_mib = kernel, script, cpus, memory_mib
        self.timeout_s, self.steps, self.files = timeout_s, steps or {}, files or {}
        self.qemu_args, self.accel, self.quiet, self.on_line = list(qemu_args), accel, quiet, on_line
        self.out, self.kernel_args, self.shared = out or sys.stdout, kernel_args, shared
        for number, path in enumerate(sockets):
            self.qemu_args += vfio_user(path, 4 + number)
        self.results, self.notes, self.console = [], {}, bytearray()
        self.release, self.exit_code, self.process, self._tail = None, None, None, {}

    def run(self):
        """Boots, runs the script to its end, returns its exit code."""
        with scratch("guest-") as folder:
            try:
                self._start(folder)
                self._talk()
            finally:
                self.kill()
        return self.exit_code

    def kill(self):
        """Pulls the plug (for power-cut tests too); harmless when it is off already."""
        if self.process is not None:
            stop(self.process)

    def _initramfs(self, folder):
        """Tools, modules and what is particular to this run, one archive after the other."""
        extra = Archive()
        files = {name: os.path.join(HERE, name) for name in ("init", "lib.sh", "faults.awk")}
        files.update(self.files)
        for inside, path in files.items():
            with open(path, "rb") as file:
                extra.file(inside, file.read(), 0o755)
        emulated = int(bool(self.counts) or (self.accel or acceleration()) == "tcg")
        extra.file("run.sh", b"EMULATED=%d\n. /lib.sh\n" % emulated + self.script.encode())
        mkguest = os.path.join(HERE, "mkguest.sh")
        self.kernel_folder = run_tool(mkguest, self.kernel)
        path = os.path.join(folder, "initramfs")
        with open(path, "wb") as out:
            for part in (run_tool(mkguest, "tools") + "/tools.cpio", self.kernel_folder + "/modules.cpio"):
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, out)
            extra.write(out)
        return path

    def _command(self, initramfs, console, control):
        accel = "tcg" if self.counts else self.accel or acceleration()
        return [
            qemu(), "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
            "-machine", "q35,memory-backend=ram", "-m", "%dM" % self.memory_mib, "-smp", str(self.cpus),
            # vfio-user servers map guest memory that is a shared file, and ask QEMU for what is in any other
            "-object", "memory-backend-%s,id=ram,size=%dM" % (
                "memfd,share=on" if self.shared else "ram", self.memory_mib),
            *self._acceleration(accel), "-cpu", "host" if accel == "kvm" else "max",
            "-kernel", os.path.join(self.kernel_folder, "kernel"), "-initrd", initramfs,
            "-append", "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check "
            + self.kernel_args,
            "-chardev", "socket,id=console,fd=%d" % console, "-serial", "chardev:console",
            "-chardev", "socket,id=control,fd=%d" % control, "-serial", "chardev:control",
        ] + self.qemu_args

    def _acceleration(self, accel):
        if self.counts:
            # With two processors that take turns, QEMU 11.1 and a plugin corrupt the guest's memory.
            alone = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]
            how = alone if self.cpus == 1 else ["-accel", "tcg,thread=multi"]
            return how + ["-plugin", "%s,out=%s" % (counter(), self.counts)]
        return ["-accel", "tcg,thread=multi" if accel == "tcg" else accel]

    def _start(self, folder):
        self._console, console = socket.socketpair()
        self._control, control = socket.socketpair()
        command = self._command(self._initramfs(folder), console.fileno(), control.fileno())
        self._errors = tempfile.TemporaryFile()
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors,
            pass_fds=(console.fileno(), control.fileno()), preexec_fn=die_with_parent,
        )
        console.close()
        control.close()

    def _talk(self):
        """Serves both serial ports until QEMU closes them or the time is over."""
        selector = selectors.DefaultSelector()
        selector.register(self._console, selectors.EVENT_READ, self._console_line)
        selector.register(self._control, selectors.EVENT_READ, self._control_line)
        while selector.get_map():
            left_s = self.started + self.timeout_s - time.monotonic()
            if left_s <= 0:
                raise GuestError("guest %s: not done after %d s; its last words:\n%s" % (
                    self.kernel, self.timeout_s, self.last_words()))
            ready = selector.select(left_s)
            for key, _ in sorted(ready, key=lambda pair: pair[0].fileobj is self._control):  # the console first
                data = self._receive(key.fileobj)
                for line in self._lines(key.fileobj, data):
                    key.data(line)
                if not data:
                    selector.unregister(key.fileobj)
        self.process.wait()
        if self.exit_code is None:
            self._errors.seek(0)
            raise GuestError("guest %s: QEMU ended (%s) before the script did: %s\n%s" % (
                self.kernel, self.process.returncode, self._errors.read().decode(errors="replace").strip(),
                self.last_words()))

    @staticmethod
    def _receive(port):
        try:
            return port.recv(65536)
        except ConnectionResetError:
            return b""

    def _lines(self, port, data):
        """Whole lines of what a port has said so far; the rest waits for more."""
        *lines, self._tail[port] = (self._tail.get(port, b"") + data).split(b"\n")
        if not data and self._tail[port]:
            lines.append(self._tail[port])
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def _console_line(self, line):
        if len(self.console) < CONSOLE_LIMIT:
            self.console += line.encode() + b"\n"
        if not self.quiet:
            print("    | " + line, file=self.out, flush=True)

    def last_words(self):
        return "\n".join(self.console.decode(errors="replace").splitlines()[-15:])

    def _control_line(self, line):
        verb, _, rest = line.partition(" ")
        if self.on_line and self.on_line(line):
            return
        if verb in ("pass", "fail"):
            self._result(verb == "pass", rest)
        elif verb == "note":
            key, _, value = rest.partition(" ")
            self.notes[key] = value
        elif verb == "host":
            self._control.sendall(self._step(*rest.split()).encode() + b"\n")
        elif verb == "up":
            self.uptime_s, self.release, _ = rest.split()
        elif verb == "exit":
            self.exit_code = int(rest)
        elif line.strip():
            raise GuestError("guest %s: an unknown word on the control port: %r" % (self.kernel, line))

    def _result(self, passed, text):
        name, _, why = text.partition(": ")
        self.results.append((name, passed, why))
        if not self.quiet:
            print("  %s %s%s" % ("PASS" if passed else "FAIL", name, ": " + why if why else ""), file=self.out, flush=True)

    def _step(self, verb, *args):
        if verb not in self.steps:
            return "error the host knows no step %r" % verb
        try:
            return "ok %s" % (self.steps[verb](*args) or "")
        except Exception as error:  # whatever it was, the guest must get an answer
            return "error " + " ".join(str(error).split())[:300]
