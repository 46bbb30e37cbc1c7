# The admin test's guest side: drive 00:04.0 in memory, and 00:05.0 on a file, where a write takes longer than a guest waits.
A=0000:00:04.0 B=0000:00:05.0
within 15 namespace_of $A 1 > /dev/null && within 15 namespace_of $B 1 > /dev/null || { fail "drives appear"; exit 1; }
CA=$(controller_of $A) CB=$(controller_of $B) NA=$(namespace_of $A 1) NB=$(namespace_of $B 1)
says() { what=$1; shift; "$@" 2>&1 | grep -qi "$what"; }

say "features"
for id in 0x1 0x2 0x4 0x5 0x7 0x8 0x9 0xa 0xb 0xe 0xf 0x16; do
  check "feature $id is read" nvme get-feature /dev/$CA -n 1 --feature-id=$id --data-len=512
done
check "feature 0x6 is read, where there is a cache" nvme get-feature /dev/$CB --feature-id=6
for feature in 0x2=0 0x4=0x150 0x8=0x0102 0xa=1; do
  check "feature $feature is set" nvme set-feature /dev/$CA --feature-id=${feature%=*} --value=${feature#*=}
done
check "and read as that" says 150 nvme get-feature /dev/$CA --feature-id=4
# Without a command set, nvme-cli looks for that in the registers first, which this kernel does not show it.
check "effects-log" nvme effects-log /dev/$CA --csi=0
effects() { nvme get-log /dev/$CA --log-id=5 --log-len=4096 --raw-binary | od -An -tx4 -j"$1" -N4 | tr -d ' '; }
alone() { [ "$(effects 528)" = 02020003 ]; }
check "it has Sanitize, which is alone in the subsystem" alone
changes() { [ "$(effects 1040)" = 00000003 ]; }
check "and Write Uncorrectable, which changes what is there" changes

say "write-uncor"
readable() { dd if=/dev/$NA of=/dev/null bs=512 skip="$1" count=1 iflag=direct 2>/dev/null; }
unreadable() { ! readable "$1"; }
check "blocks are marked" nvme write-uncor /dev/$NA --start-block=1000 --block-count=7
check "the first cannot be read" unreadable 1000
check "nor the last" unreadable 1007
check "the next can be" readable 1008
check "one is written" dd if=/dev/zero of=/dev/$NA bs=512 seek=1007 count=1 oflag=direct
check "and can be read" readable 1007
check "its neighbour cannot" unreadable 1006
usual() { ! dmesg | grep "unusual effects"; }
check "the kernel finds nothing unusual in the effects of commands" usual

say "subsystem reset"
check "the subsystem is reset" nvme subsystem-reset /dev/$CA
check "the controller is back" within 10 nvme reset /dev/$CA
check "and reads" readable 0
check "what was marked still is" unreadable 1006
check "the other drive has seen nothing of it" dd if=/dev/$NB of=/dev/null bs=4k count=1 iflag=direct

say "sanitize"
dd if=/dev/urandom of=/dev/$NA bs=1M count=4 oflag=direct 2>/dev/null
check "$CA is overwritten twice" nvme sanitize /dev/$CA --sanact=3 --owpass=2 --ovrpat=0
sanitized() { [ "$(nvme get-log /dev/$1 --log-id=0x81 --log-len=512 --raw-binary | od -An -tu1 -j2 -N1 | tr -d ' ')" = "$2" ]; }
check "it ends, and the log says so" within 20 sanitized $CA 17
zeroes() { dd if=/dev/$NA bs=1M count=64 iflag=direct 2>/dev/null | cmp -n 67108864 - /dev/zero; }
check "nothing of what was there is left" zeroes
check "what was marked can be read" readable 1006

say "persistent-event-log"
events() { nvme persistent-event-log /dev/$CA --action=0 > /tmp/events 2>&1; }
check "a context is established" nvme persistent-event-log /dev/$CA --action=1
recorded() { grep -i "^event type" /tmp/events | grep -qi "$1"; }
check "it is read" events
# The oldest event, of the drive's health, is not printed: this nvme-cli ends before an event that the log ends with.
for event in "power-on" "timestamp" "set feature" "sanitize start" "sanitize completion"; do
  check "$event is in it" recorded "$event"
done
check "the context is released" nvme persistent-event-log /dev/$CA --action=2

say "sanitize, and the end of the daemon"
check "$CB begins to be erased" nvme sanitize /dev/$CB --sanact=2
check "the log says that it is under way" sanitized $CB 2
check "sanitize-log" nvme sanitize-log /dev/$CB
check "it is not begun again" says "sanitize" nvme sanitize /dev/$CB --sanact=2
check "and cannot be read" says "sanitize" nvme read /dev/$NB --start-block=0 --block-count=0 --data-size=512 --data=/tmp/x
exit 0
