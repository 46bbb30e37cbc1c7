#!/usr/bin/env python3
"""All guest tests; the last line is "N passed, N failed". --full adds what is too long for CI."""

import argparse
import sys

import comparison
import guest
import sluice
import test_absence
import test_admin
import test_atomic
import test_classifier
import test_crash
import test_device
import test_discard
import test_encrypt
import test_faults
import test_firmware
import test_groups
import test_holder
import test_hotplug
import test_manage
import test_monitor
import test_generic
import test_odd_hosts
import test_powercut
import test_redundancy
import test_replicate
import test_resv
import test_smoke
import test_snapshot
import test_stacks
import test_tcp
import test_tcp_auth
import test_tcp_host
import test_tcp_paths
import test_tls
import test_upgrade
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
    test_faults.run(report)
    test_smoke.run(report)
    test_firmware.run(report)
    test_classifier.run(report)
    test_groups.run(report)
    test_monitor.run(report)
    test_discard.run(report, gib=16 if options.full else test_discard.GIB)
    test_hotplug.run(report, rounds=20 if options.full else test_hotplug.ROUNDS)
    test_encrypt.run(report)
    test_replicate.run(report)
    test_redundancy.run(report, guest.KERNELS if options.full else ("6.12",),
                        full_s=60 if options.full else test_redundancy.FULL_S)
    test_stacks.run(report, guest.KERNELS if options.full else ("6.12",), ("process", "daemon") if options.full else ("process",),
                    deaths=20 if options.full else test_stacks.DEATHS, again=options.full)
    test_snapshot.run(report)
    comparison.run(report)
    test_odd_hosts.run(report)
    test_device.run(report)
    test_generic.run(report, guest.KERNELS if options.full else ("6.1",))
    test_tcp.run(report, guest.KERNELS if options.full else ("6.12",))
    test_tcp_host.run(report, guest.KERNELS if options.full else ("6.12",))
    test_tcp_paths.run(report, guest.KERNELS if options.full else ("6.12",))
    test_absence.run(report, guest.KERNELS if options.full else ("6.12",),
                     seconds=600 if options.full else test_absence.SECONDS)
    test_upgrade.run(report, guest.KERNELS if options.full else ("6.12",),
                     upgrades=100 if options.full else test_upgrade.UPGRADES)
    test_holder.run(report, guest.KERNELS if options.full else ("6.12",),
                    deaths=200 if options.full else test_holder.DEATHS)
    test_tls.run(report, ("6.12", "7.3") if options.full else ("6.12",), test_tls.ENDS if options.full else ("host",))
    test_tcp_auth.run(report, test_tcp_auth.KERNELS if options.full else ("6.12",), options.full)
    test_atomic.run(report)
    test_resv.run(report, guest.KERNELS if options.full else ("6.12",))
    test_manage.run(report, guest.KERNELS if options.full else ("6.12",))
    if options.full:
        test_admin.run(report)
        test_crash.run(report, rounds=20)
        test_powercut.run(report, ("ext4", "xfs", "raw"), cuts=20)
        test_powercut.power_cut(report, "ext4", control=True, direct=True)  # would a loss be noticed?
    else:
        test_crash.run(report, rounds=1)
        test_powercut.run(report, ("ext4", "raw"), cuts=4)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
