#!/usr/bin/env python3
"""What a host does to a drive besides reading and writing it, by nvme-cli on a stock kernel: see admin.sh.

  test_admin.py [--kernel 6.12]

The second drive is slow: a sanitize operation is under way on it when the guest ends and the daemon is killed. The next
daemon has to come to its end, without a guest.
"""

import argparse
import os
import sys
import time

import guest
import sluice
from report import Report

TIMEOUT_S = 400
PATIENCE_S = 15
SIZE = 32 << 20
SLOW = 'functions = [ { kind = "delay", write_us = 25_000_000 } ]'


def daemon(folder, image, slow):
    """The drives `a`, in memory, and `b`, on a file."""
    more = [SLOW] if slow else []
    return sluice.Daemon(folder, {
        "a": [sluice.Namespace("memory", "64MiB")],
        "b": [sluice.Namespace("file", "%dMiB" % (SIZE >> 20), 512, image, more)],
    })


def is_erased(image):
    with open(image, "rb") as file:
        return not any(file.read())


def admin(report, kernel):
    report.theme("admin: Linux %s" % kernel)
    with open(os.path.join(guest.HERE, "admin.sh")) as file:
        script = file.read()
    with guest.scratch() as folder:
        image = os.path.join(folder, "b.img")
        with open(image, "wb") as file:
            file.write(b"\x5a" * SIZE)
        try:
            first = daemon(folder, image, True)
            with first:
                report.guest(guest.Guest(kernel, script, sockets=first.sockets(), timeout_s=TIMEOUT_S), kernel)
                first.kill()
                report.check("nothing was erased when the daemon died", not is_erased(image), "it was quicker than that")
            with daemon(folder, image, False) as second:
                limit = time.monotonic() + PATIENCE_S
                while not is_erased(image) and time.monotonic() < limit:
                    time.sleep(0.1)
                report.check("the next daemon ends the sanitize operation", is_erased(image), second.log_tail())
                report.check("the daemon ends cleanly", second.stop() == 0, second.log_tail())
        except guest.GuestError as error:
            report.check("admin %s" % kernel, False, str(error))


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        admin(report, kernel)


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12", choices=guest.KERNELS)
    options = parser.parse_args()
    if sluice.missing():
        sys.exit("error: " + sluice.missing())
    report = Report()
    run(report, (options.kernel,))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
