# Prints the lines of a kernel log that tell of a fault of that kernel's, and those that match `also`.
#
# A processor that is emulated may wait for the machine's so long that the kernel takes what runs on it for locked up,
# which it says with a trace of that. With `emulated` these are no faults; nor are the traces after them, until something
# else is said of which traces are made.
BEGIN {
  starved = "soft lockup|(detected|self-detected) .*stalls? on|rcu_[a-z_]+ kthread (starved|timer wakeup)|workqueue lockup|RCU grace-period kthread stack dump"
  fault = "BUG:|WARNING:|Oops|Kernel panic|general protection fault|page allocation failure|blocked for more than|hard LOCKUP"
}
$0 ~ starved { is_starved = 1; if (!emulated) print; next }
$0 ~ fault { is_starved = 0; print; next }
/Call Trace/ && !(emulated && is_starved) { print; next }
also != "" && $0 ~ also
