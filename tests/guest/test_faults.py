#!/usr/bin/env python3
"""What is read out of a guest's kernel log: faults, and not that an emulated processor had to wait. Boots nothing."""

import os
import subprocess
import sys

import guest
from report import Report

STARVED = """\
[  101.1] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [fio:312]
[  101.1] Modules linked in: nvme_tcp nvme_core
[  101.1] CPU: 1 UID: 0 PID: 312 Comm: fio Not tainted 7.3.0
[  101.1] Call Trace:
[  101.1]  <TASK>
[  101.1]  nvme_tcp_queue_rq+0x1a0/0x2b0
[  101.1]  </TASK>
[  122.9] rcu: INFO: rcu_preempt self-detected stall on CPU
[  122.9] rcu: rcu_preempt kthread starved for 5250 jiffies! g1 f0x0
[  122.9] rcu: RCU grace-period kthread stack dump:
[  122.9] Call Trace:
[  131.0] rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 0-... }
[  131.0] Call Trace:
[  140.2] BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 34s!
"""
QUIET = """\
[    0.1] clocksource: Switched to clocksource tsc
[    2.2] nvme nvme0: mapped 2/0/0 default/read/poll queues.
[    9.0] clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable
"""
FAULTS = {
    "an oops": ("[ 3.0] BUG: kernel NULL pointer dereference, address: 0\n[ 3.0] Oops: Oops: 0000 [#1] SMP\n[ 3.0] Call Trace:\n", 3),
    "a warning": ("[ 3.0] WARNING: CPU: 0 PID: 9 at fs/ext4/inode.c:1\n[ 3.0] Call Trace:\n", 2),
    "a hung task": ("[ 3.0] INFO: task fio:312 blocked for more than 120 seconds.\n[ 3.0] Call Trace:\n", 2),
    "a trace of anything": ("[ 3.0] fio: something odd\n[ 3.0] Call Trace:\n", 1),
}
ERROR = "[  7.7] I/O error, dev nvme0n1, sector 8 op 0x0:(READ)\n"


def faults(log, emulated, also=""):
    words = ["awk", "-v", "emulated=%d" % emulated, "-v", "also=" + also, "-f", os.path.join(guest.HERE, "faults.awk")]
    return subprocess.run(words, input=log, capture_output=True, text=True, check=True).stdout.splitlines()


def run(report):
    report.theme("What is read out of kernel logs")
    for emulated in (True, False):
        where = "emulated" if emulated else "not emulated"
        for name, (log, count) in FAULTS.items():
            found = faults(QUIET + log, emulated)
            report.check("%s: %s is found" % (where, name), len(found) == count, str(found))
        found = faults(QUIET + ERROR, emulated, "timeout|I/O error")
        report.check("%s: what is asked for is found, too" % where, found == [ERROR.strip()], str(found))
        found = faults(QUIET + ERROR, emulated)
        report.check("%s: and not if it is not" % where, not found, str(found))
    found = faults(STARVED, True)
    report.check("an emulated processor may have to wait", not found, str(found))
    found = faults(STARVED, False)
    report.check("another may not", len(found) == 9, str(found))
    log, count = FAULTS["a warning"]
    found = faults(STARVED + log + STARVED, True)
    report.check("a fault among that is found", len(found) == count, str(found))


if __name__ == "__main__":
    REPORT = Report()
    run(REPORT)
    sys.exit(REPORT.finish())
