#!/usr/bin/env python3
"""The demonstration behind `make demo`: a drive in memory, a stock guest that uses it, and what came of it."""

import argparse
import os
import sys
import time

import guest
import sluice

KERNEL = "6.12"
BOLD, DIM, PLAIN = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


class Screen:
    """Numbered steps with the time; what the guest prints below them."""

    def __init__(self, first):
        self.number, self.started, self.rows = first, time.monotonic(), []

    def step(self, text):
        print("\n%s%d. %s%s" % (BOLD, self.number, text, PLAIN), flush=True)
        self.number += 1

    def write(self, text):
        """The guest's console comes here, line by line."""
        text = text.strip("\n").removeprefix("    | ")
        if text and "reboot:" not in text:
            sys.stdout.write("   %s%s%s\n" % (DIM, text, PLAIN))

    def flush(self):
        sys.stdout.flush()

    def line(self, line):
        """Lines of the guest's control port that are ours."""
        verb, _, rest = line.partition(" ")
        if verb == "step":
            self.step(rest)
        elif verb == "row":
            self.rows.append(rest.split(" = ", 1))
        return verb in ("step", "row")

    def summary(self, rows):
        width = max(len(name) for name, _ in rows)
        print("\n%sSummary%s" % (BOLD, PLAIN))
        for name, value in rows:
            print("   %-*s   %s" % (width, name, value))
        print(flush=True)


def cpu_seconds(pid):
    """Processor time of a process so far."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(screen, backend):
    """Says what is served, as the user would do it."""
    screen.step("The daemon serves a drive of 64 MiB in memory")
    if isinstance(backend, sluice.Reference):
        screen.write("(QEMU's own emulation instead of the daemon: this only shows the demonstration)")
        return
    with open(backend.config) as file:
        for line in file.read().replace(backend.folder, "DIR").splitlines():
            screen.write(line)
    screen.write("$ sluice serve -c DIR/sluice.toml")
    for line in backend.list().splitlines():
        screen.write(line.replace(backend.folder, "DIR"))
    screen.write("$ sluice drive attach demo --print qemu")
    screen.write(" ".join(backend.attach_arguments("demo")).replace(backend.folder, "DIR"))


def boot(screen, backend):
    """The guest, from power on to power off."""
    emulated = isinstance(backend, sluice.Reference)
    how = "with KVM" if guest.acceleration() == "kvm" else "emulated, as there is no working KVM here"
    screen.step("A guest with 2 virtual CPUs boots (%s)" % how)
    with open(os.path.join(guest.HERE, "demo.sh")) as file:
        script = file.read()
    machine = guest.Guest(
        KERNEL, script, on_line=screen.line, out=screen,
        qemu_args=backend.qemu_args() if emulated else backend.attach_arguments("demo"),
    )
    machine.run()
    return machine


def demo(reference):
    """Returns the exit code."""
    screen = Screen(3)
    drives = {"demo": [sluice.Namespace("memory", "64MiB")]}
    with guest.scratch() as folder:
        with (sluice.Reference if reference else sluice.Daemon)(folder, drives) as backend:
            serve(screen, backend)
            machine = boot(screen, backend)
            rows = [("guest", "Linux " + machine.release), ("up after", machine.uptime_s + " s")] + screen.rows
            if not reference:
                rows.append(("processor time of the daemon", "%.1f s" % cpu_seconds(backend.process.pid)))
                ended = backend.stop()
                rows.append(("end of the daemon", "clean" if ended == 0 else "exit code %d" % ended))
    rows.append(("the whole demonstration", "%.0f s" % (time.monotonic() - screen.started)))
    screen.summary(rows)
    if machine.exit_code != 0:
        print("The guest's script failed (exit %d)." % machine.exit_code)
    return machine.exit_code


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", action="store_true", help="QEMU's own NVMe emulation instead of the daemon")
    options = parser.parse_args()
    if not options.reference and sluice.missing():
        sys.exit("error: " + sluice.missing())
    try:
        return demo(options.reference)
    except guest.GuestError as error:
        sys.exit("error: %s" % error)
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; everything that was started has been stopped")


if __name__ == "__main__":
    sys.exit(main())
