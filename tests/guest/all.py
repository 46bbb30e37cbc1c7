#!/usr/bin/env python3
"""All guest tests; the last line is "N passed, N failed". --full adds what is too long for CI."""

import argparse
import sys

import guest
import sluice
import test_crash
import test_powercut
import test_smoke
from report import Report


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds of everything")
    options = parser.parse_args()
    if sluice.missing():
        print("error: " + sluice.missing(), file=sys.stderr)
        return 1
    report = Report()
    report.theme("guests run with %s" % guest.acceleration())
    test_smoke.run(report)
    test_crash.run(report, rounds=20 if options.full else 1)
    test_powercut.run(report, kinds=("ext4", "xfs", "raw") if options.full else ("ext4", "raw"), cuts=20 if options.full else 6)
    if options.full:
        test_powercut.power_cut(report, "ext4", control=True, direct=True)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
