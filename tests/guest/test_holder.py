#!/usr/bin/env python3
"""Deaths of the daemon under a guest's load, beside a holder: the guest sees a pause and nothing else. It is the same QEMU all
the time. The first deaths come while the guest's firmware and driver start.

  test_holder.py [--kernels 6.1 6.12 7.3] [--deaths 200] [--at_start 12]
"""

import os
import threading
import time

import guest
import sluice
import test_upgrade
from report import by_kernels

DEATHS = 20
DEATHS_AT_START = 12
BETWEEN_S = 0.3


def die(daemon, times):
    for _ in range(times):
        daemon.kill()
        daemon.start()
        time.sleep(BETWEEN_S)


def boot(report, folder, kernel, deaths, at_start):
    image = os.path.join(folder, "disk.img")
    daemon = sluice.Daemon(folder, {"a": [sluice.Namespace("file", "64MiB", 512, image)]}, holder=True)
    with sluice.Holder(folder), daemon:
        started, over = threading.Event(), threading.Event()

        def start():
            die(daemon, at_start)
            started.set()
            over.wait()  # a daemon ends with the thread that has started it: see guest.die_with_parent

        starting = threading.Thread(target=start)
        seconds = int(deaths * (BETWEEN_S + 0.5) + 10)
        steps = {
            "started": started.wait,
            "changes": lambda: die(daemon, deaths),
            "grow": lambda: daemon.resize("a", 1, "128MiB"),
        }
        words = "CHANGE='kills the daemon'\nCHANGE_AT_START=yes\nSECONDS_OF_LOAD=%d\n" % seconds
        script = words + test_upgrade.VERIFIED + test_upgrade.SCRIPT
        run = guest.Guest(kernel, script, daemon.sockets(), timeout_s=2 * seconds + 120, steps=steps)
        starting.start()
        try:
            report.guest(run, "deaths of the daemon")
            report.ended(daemon, "deaths of the daemon: ")
        finally:
            over.set()
            starting.join()


def run(report, kernels=("6.12",), deaths=DEATHS, at_start=DEATHS_AT_START):
    for kernel in kernels:
        report.theme("%d deaths of the daemon, Linux %s" % (at_start + deaths, kernel))
        report.scratch("deaths of the daemon", boot, kernel, deaths, at_start)


if __name__ == "__main__":
    raise SystemExit(by_kernels(__doc__, run, deaths={"type": int, "default": DEATHS},
                                at_start={"type": int, "default": DEATHS_AT_START}))
