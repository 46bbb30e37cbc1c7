#!/usr/bin/env python3
"""Boots a Debian system from an image, and runs inside.sh in it. usage: boot.py IMAGE

The last line is "N passed, N failed".
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "guest"))

import guest
from report import Report

LIMIT_S = 900


def main():
    guest.end_politely()
    report = Report()
    report.theme("a fresh Debian, with %s" % guest.acceleration())
    with open(os.path.join(HERE, "inside.sh")) as file:
        script = file.read()
    disk = ["-drive", "file=%s,if=none,id=disk,format=raw" % sys.argv[1], "-device", "nvme,drive=disk,serial=root"]
    machine = guest.Guest("6.12", script, files={"init": os.path.join(HERE, "init")}, qemu_args=disk, memory_mib=2048,
                          timeout_s=LIMIT_S, kernel_args="systemd.show_status=no")
    report.guest(machine, "package")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
