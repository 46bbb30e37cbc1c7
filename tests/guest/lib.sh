# Sourced by every guest script. Speaks to guest.py over the second serial port, one line each:
#   pass NAME | fail NAME: WHY | note KEY VALUE      reports, no answer
#   host VERB ARGS                                   a step for the host; it answers "ok ..." or "error ..."
exec 9<>/dev/ttyS1

say() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }
# Setting a terminal mode waits until all output is out: so the host sees both ports in our order.
tell() { stty -F /dev/ttyS0 -echo; echo "$*" >&9; }
note() { tell note "$@"; }
pass() { tell pass "$@"; }
fail() { tell fail "$@"; }

# host VERB ARGS : has the host do something, waits until it is done, prints the answer
host() {
  tell host "$@"
  read -r answer <&9
  case $answer in
    ok*) echo "${answer#ok}" ;;
    *) echo "$answer"; return 1 ;;
  esac
}

# check NAME COMMAND... : one check; a failure shows what the command said and goes on
check() {
  name=$1; shift
  if "$@" > /tmp/check.out 2>&1; then
    pass "$name"
  else
    code=$?
    tail -n 30 /tmp/check.out
    fail "$name: exit $code: $(tail -n 2 /tmp/check.out | tr '\n\r' '  ' | cut -c1-200)"
  fi
}

# within SECONDS COMMAND... : tries until it succeeds
within() {
  tries=$(( $1 * 5 )); shift
  while ! "$@"; do
    tries=$((tries - 1)); [ $tries -gt 0 ] || return 1
    sleep 0.2
  done
}

# faults PATTERN : of a kernel log on stdin, the faults of that kernel and what matches this
faults() { awk -v emulated="$EMULATED" -v also="$1" -f /faults.awk; }
# quiet_log PATTERN : the guest's kernel log has none
quiet_log() { ! dmesg | faults "$1" | grep .; }

sectors() { cat "/sys/block/$1/size"; }

# the block device of namespace NSID of the controller at PCI address ADDR (0000:00:04.0)
namespace_of() {
  for dir in /sys/bus/pci/devices/"$1"/nvme/nvme*/nvme*n*; do
    [ "$(cat "$dir/nsid" 2>/dev/null)" = "$2" ] && { basename "$dir" | sed 's/c[0-9]*n/n/'; return; }
  done
  return 1
}
controller_of() { basename /sys/bus/pci/devices/"$1"/nvme/nvme*; }
