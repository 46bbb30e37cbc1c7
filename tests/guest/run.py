#!/usr/bin/env python3
"""Runs a script in a throw-away guest and returns its exit code; for trying things by hand.

  run.py [--kernel 6.12] [--cpus 2] [--timeout 180] [--drive SOCKET]... [--qemu-nvme IMAGE]... SCRIPT [-- QEMU ARGS]
"""

import argparse
import sys

import guest


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="6.12", choices=guest.KERNELS)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory", type=int, default=1024, help="MiB")
    parser.add_argument("--timeout", type=int, default=180, help="seconds")
    parser.add_argument("--drive", action="append", default=[], metavar="SOCKET", help="a vfio-user socket")
    parser.add_argument("script", help="a shell script; - reads standard input")
    parser.add_argument("qemu", nargs="*", help="more arguments for QEMU")
    options = parser.parse_args()
    script = sys.stdin.read() if options.script == "-" else open(options.script).read()
    run = guest.Guest(options.kernel, script, options.drive, options.cpus, options.memory, options.timeout,
                      qemu_args=options.qemu)
    try:
        code = run.run()
    except guest.GuestError as error:
        sys.exit("error: %s" % error)
    print("guest %s: exit %d" % (run.release, code))
    return code


if __name__ == "__main__":
    sys.exit(main())
