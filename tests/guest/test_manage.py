#!/usr/bin/env python3
"""Namespaces that a host creates, attaches, detaches and deletes, by nvme-cli on a stock kernel with two controllers of
one drive: see manage.sh. Then the daemon is killed, and a second guest finds what the first has made: manage_again.sh.

  test_manage.py [--kernels 6.12]
"""

import os
import sys

import guest
import sluice
from report import by_kernels

TIMEOUT_S = 300


def script(name):
    with open(os.path.join(guest.HERE, name)) as file:
        return file.read()


def daemon(folder):
    pool = ["[drive.vfio_user]", "sockets = 2", "[drive.pool]", 'target = "file"', 'size = "64MiB"',
            'folder = "%s"' % os.path.join(folder, "pool")]
    return sluice.Daemon(folder, {"disk": []}, more={"disk": pool})


def manage(report, folder, kernel):
    with daemon(folder) as first:
        sockets = [first.socket("disk"), first.socket("disk/2")]
        report.guest(guest.Guest(kernel, script("manage.sh"), sockets=sockets, timeout_s=TIMEOUT_S), kernel)
        first.kill()
    files = sorted(os.listdir(os.path.join(folder, "pool")))
    report.check("there is a file for each namespace", len(files) == 2, str(files))
    with daemon(folder) as second:
        report.guest(guest.Guest(kernel, script("manage_again.sh"), sockets=sockets, timeout_s=TIMEOUT_S), kernel)
        report.check("the daemon ends cleanly", second.stop() == 0, second.log_tail())
        report.check("the log has no complaint", not second.complaints(), second.complaints())
    files = os.listdir(os.path.join(folder, "pool"))
    report.check("nothing is left in the pool's folder", not files, str(files))


def run(report, kernels=("6.12",)):
    for kernel in kernels:
        report.theme("namespace management: Linux %s" % kernel)
        report.scratch("namespace management", manage, kernel)


if __name__ == "__main__":
    sys.exit(by_kernels(__doc__, run))
