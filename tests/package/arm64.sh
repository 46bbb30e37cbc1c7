#!/usr/bin/busybox sh
# PID 1 of an arm64 guest with the package of arm64 in place: uses the daemon, and this kernel is its host. See arm64.py.
export PATH=/usr/sbin:/usr/bin:/busybox HOME=/tmp
/usr/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root /mnt /var/lib/sluice/images /busybox
/usr/bin/busybox --install -s /busybox
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp
mkdir /run/sluice /run/sluice-holder
ip link set lo up
cd /tmp
ulimit -l 65536

# check NAME COMMAND...
check() {
  name=$1; shift
  if "$@" > out 2>&1; then echo "pass $name"; else code=$?; tail -n 20 out; echo "fail $name: exit $code: $(tail -n 2 out | tr '\n\r' '  ')"; fi
}
within() { tries=$(( $1 * 5 )); shift; while ! "$@"; do tries=$((tries - 1)); [ $tries -gt 0 ] || return 1; sleep 0.2; done; }
answers() { sluice drive list; }
disk() { for disk in /sys/block/nvme*; do [ -e "$disk" ] && basename "$disk" && return; done; return 1; }
examined() {
  sluice doctor --config /etc/sluice/sluice.toml > doctor
  ! grep -E '^(slower +processor|missing)' doctor | grep -v '^missing *daemon'
}
start() { sluice serve -c /etc/sluice/sluice.toml >> log 2>&1 & daemon=$!; within 60 answers; }
read_back() { dd if="/dev/$(disk)" bs=128k count=64 iflag=direct 2>/dev/null | cmp - data; }
written() { head -c 8388608 /dev/urandom > data && dd if=data of="/dev/$(disk)" bs=128k oflag=direct conv=fsync; }
death() {
  dd if=data of="/dev/$(disk)" bs=16k oflag=direct & writer=$!
  kill -9 "$daemon"; wait "$daemon"
  start && wait $writer && within 60 read_back
}
observed() { sluice classifier attach disk /usr/lib/sluice/observe.o && read_back; }
quiet() { ! grep -E ' (WARN|ERROR) ' log | grep -v 'the last daemon has died'; }

uname -a
check "the program" sluice --version
check "the benchmark" sluice bench --help
check "the processor has all that drives use" examined
grep processor doctor
sed -i '/^# A drive in memory/,$d; /socket_group/! s/^#\([^ ]\)/\1/; s/GiB/MiB/' /etc/sluice/sluice.toml
check "the configuration" sluice serve --check -c /etc/sluice/sluice.toml
sluice-holder /run/sluice-holder/socket >> log 2>&1 &
within 20 test -S /run/sluice-holder/socket
check "the daemon starts" start
depmod
check "nvme-tcp" modprobe nvme-tcp
check "a host connects" nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2024-01.org.example:disk
check "it has the drive" within 20 disk
check "it writes" written
check "it reads the same" read_back
check "a classifier, compiled for this processor" observed
check "the host goes on after a death of the daemon" death
check "the log has no error" quiet
kill "$daemon"; wait "$daemon"; code=$?
check "the daemon ends in order" test $code = 0
grep -E ' (WARN|ERROR) ' log
echo "exit 0"
poweroff -f
