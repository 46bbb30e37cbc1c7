# The guest's side of the test of namespaces that hosts make: 00:04.0 and 00:05.0 are two controllers of one drive, which
# has a pool of 64 MiB and nothing else. The kernel sees them as two ways to each namespace that both have.
A=0000:00:04.0 B=0000:00:05.0
there() { [ -e /sys/bus/pci/devices/"$1"/nvme/nvme* ] && [ -c /dev/"$(controller_of "$1")" ]; }
within 15 there $A && within 15 there $B || { fail "controllers appear"; exit 1; }
CA=$(controller_of $A) CB=$(controller_of $B)
has() { namespace_of "$1" "$2" > /dev/null; }
lacks() { ! has "$1" "$2"; }
says() { what=$1; shift; "$@" 2>&1 | grep -qi "$what"; }
unallocated() { [ "$(nvme id-ctrl /dev/$CA | sed -n 's/^unvmcap *: *//p')" = "$1" ]; }

say "create"
check "all of the pool is there" unallocated 67108864
check "create-ns" nvme create-ns /dev/$CA --nsze=8192 --ncap=8192 --flbas=1 --nmic=1
check "it has gone from the pool" unallocated 33554432
check "it is allocated" says 0x1 nvme list-ns /dev/$CA --all
check "nobody has it" lacks $A 1
check "too much is refused" says "capacity" nvme create-ns /dev/$CA --nsze=8193 --ncap=8193 --flbas=1
check "thin provisioning is" says "thin" nvme create-ns /dev/$CA --nsze=16 --ncap=8 --flbas=1

say "attach"
check "attach-ns" nvme attach-ns /dev/$CA --namespace-id=1 --controllers=1
check "it appears" within 10 has $A 1
check "the other controller does not have it" lacks $B 1
check "attached is attached" says "already" nvme attach-ns /dev/$CA --namespace-id=1 --controllers=1
N=$(namespace_of $A 1)
check "its blocks have 4096 bytes" [ "$(cat /sys/block/$N/queue/logical_block_size)" = 4096 ]
head -c 4194304 /dev/urandom > /tmp/data
check "it is written" dd if=/tmp/data of=/dev/$N bs=1M seek=1 oflag=direct conv=fsync
is_data() { dd if=/dev/"$1" bs=1M skip=1 count=4 iflag=direct 2>/dev/null | cmp - /tmp/data; }
check "and read" is_data $N
check "attach-ns to the other controller" nvme attach-ns /dev/$CA --namespace-id=1 --controllers=2
check "an event has its host look again" within 10 has $B 1
check "list-ctrl" says 0x2 nvme list-ctrl /dev/$CA --namespace-id=1

say "detach"
# What only goes to the controller that has lost it must not be seen.
check "detach-ns" nvme detach-ns /dev/$CA --namespace-id=1 --controllers=1
check "it disappears there" within 10 lacks $A 1
check "and not from the other" has $B 1
check "where it is read as before" is_data "$(namespace_of $B 1)"
check "detached is detached" says "not attached" nvme detach-ns /dev/$CA --namespace-id=1 --controllers=1

say "delete"
check "a second one, for one controller alone" nvme create-ns /dev/$CB --nsze=4096 --ncap=4096 --flbas=0 --nmic=0
check "attach-ns" nvme attach-ns /dev/$CB --namespace-id=2 --controllers=2
check "it appears" within 10 has $B 2
check "it is private" says "private" nvme attach-ns /dev/$CA --namespace-id=2 --controllers=1
check "delete-ns" nvme delete-ns /dev/$CA --namespace-id=1
check "it disappears from the other controller" within 10 lacks $B 1
check "its room is there again" unallocated 65011712
check "create-ns" nvme create-ns /dev/$CA --nsze=8192 --ncap=8192 --flbas=1 --nmic=1
check "attach-ns" nvme attach-ns /dev/$CA --namespace-id=1 --controllers=1
check "it appears" within 10 has $A 1
zeros() { dd if=/dev/"$(namespace_of $A 1)" bs=1M count=32 iflag=direct 2>/dev/null | cmp -n 33554432 - /dev/zero; }
check "nothing of the one before it can be read" zeros
check "it has a file system" mkfs.ext4 -q /dev/"$(namespace_of $A 1)"
check "and keeps a file" sh -c "mkdir -p /m && mount /dev/$(namespace_of $A 1) /m && echo kept > /m/file && umount /m"

say "the end of the daemon"
nvme persistent-event-log /dev/$CA --action=1 > /dev/null 2>&1
nvme persistent-event-log /dev/$CA --action=0 > /tmp/events 2>&1
check "persistent-event-log has what was done" grep -qi "change namespace" /tmp/events
effects() { nvme get-log /dev/$CA --log-id=5 --log-len=4096 --raw-binary | od -An -tx4 -j"$1" -N4 | tr -d ' '; }
check "effects-log: Namespace Management changes what there is" [ "$(effects 52)" = 0200000b ]
check "and Namespace Attachment" [ "$(effects 84)" = 02000009 ]
exit 0
