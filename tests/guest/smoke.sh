# The smoke test's guest side. Two drives (00:04.0 in memory, 00:05.0 on files), two namespaces each:
# the first with 512-byte blocks, the second with 4096. BACKEND=reference leaves out what QEMU's emulation lacks.
A=0000:00:04.0 B=0000:00:05.0

within 15 namespace_of $B 2 > /dev/null || { fail "drives appear"; dmesg | tail -n 20; exit 1; }
within 15 namespace_of $A 2 > /dev/null || { fail "drives appear"; dmesg | tail -n 20; exit 1; }
pass "drives appear"
CA=$(controller_of $A) CB=$(controller_of $B)
A1=$(namespace_of $A 1) A2=$(namespace_of $A 2) B1=$(namespace_of $B 1) B2=$(namespace_of $B 2)

say "what is there"
nvme list
lists_all() { [ "$(nvme list | grep -c /dev/nvme)" = 4 ]; }
check "nvme list shows four namespaces" lists_all
for c in $CA $CB; do
  check "$c id-ctrl" nvme id-ctrl /dev/$c
  check "$c smart-log" nvme smart-log /dev/$c
  check "$c error-log" nvme error-log /dev/$c
done
for n in $A1 $A2 $B1 $B2; do check "$n id-ns" nvme id-ns /dev/$n; done
block_sizes() { [ "$(cat /sys/block/$A1/queue/logical_block_size /sys/block/$A2/queue/logical_block_size | tr '\n' ' ')" = "512 4096 " ]; }
check "block sizes are 512 and 4096" block_sizes
both_queues() { [ "$(ls /sys/block/$A1/mq | wc -l)" = 2 ]; }
check "an I/O queue for each CPU" both_queues

say "four namespaces are four places"
for n in $A1 $A2 $B1 $B2; do
  dd if=/dev/urandom of=/tmp/$n bs=1M count=1 2>/dev/null
  dd if=/tmp/$n of=/dev/$n bs=64k oflag=direct 2>/dev/null
done
for n in $A1 $A2 $B1 $B2; do
  own_data() { dd if=/dev/$n bs=64k count=16 iflag=direct 2>/dev/null | cmp - /tmp/$n; }
  check "$n holds its own data" own_data
done

say "copy, verify and compare"
check "nvme copy: two ranges to one place" nvme copy /dev/$A1 --sdlba=4096 --blocks=255,15 --slbs=64,1024
first_range() { dd if=/dev/$A1 bs=512 skip=4096 count=256 iflag=direct 2>/dev/null | cmp -n 131072 - /tmp/$A1 0 32768; }
check "the first range is there" first_range
second_range() { dd if=/dev/$A1 bs=512 skip=4352 count=16 iflag=direct 2>/dev/null | cmp -n 8192 - /tmp/$A1 0 524288; }
check "the second is behind it" second_range
check "nvme verify" nvme verify /dev/$A1 --start-block=0 --block-count=2047
check "nvme compare finds equal blocks equal" nvme compare /dev/$A1 --start-block=0 --block-count=15 --data-size=8192 --data=/tmp/$A1
differs() { ! nvme compare /dev/$A1 --start-block=16 --block-count=15 --data-size=8192 --data=/tmp/$A1; }
check "and others not" differs

say "fio with crc32c verify: 4k and 128k, random and sequential, QD 1 and 32, on both drives at once"
for bs in 4k 128k; do for rw in randwrite write; do for qd in 1 32; do
  case $bs-$qd in 4k-1) size=2m ;; 4k-32) size=8m ;; 128k-1) size=16m ;; *) size=64m ;; esac
  check "fio $bs $rw QD $qd" fio --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 \
    --bs=$bs --rw=$rw --iodepth=$qd --size=$size --minimal \
    --name=a --filename=/dev/$A1 --name=b --filename=/dev/$B1
done; done; done
check "fio 4k blocks, mixed" fio --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --bs=4k --rw=randrw \
  --iodepth=32 --size=8m --minimal --name=a --filename=/dev/$A2 --name=b --filename=/dev/$B2

say "file systems"
mkdir -p /mnt/ext4 /mnt/xfs
try_file_system() { # TYPE DEVICE
  case $1 in ext4) check "mkfs.ext4 $2" mkfs.ext4 -q -F /dev/$2 ;; xfs) check "mkfs.xfs $2" mkfs.xfs -q -f /dev/$2 ;; esac
  check "mount $1 $2" mount -t $1 /dev/$2 /mnt/$1
  check "verified file on $1 $2" fio --name=f --directory=/mnt/$1 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
    --bs=16k --rw=randwrite --iodepth=8 --size=16m --fsync=64 --minimal
  check "umount $1 $2" umount /mnt/$1
  case $1 in ext4) check "e2fsck $2" e2fsck -fn /dev/$2 ;; xfs) check "xfs_repair -n $2" xfs_repair -n /dev/$2 ;; esac
}
modprobe xfs
try_file_system ext4 $A2
try_file_system xfs $B2

say "discard and write zeroes"
zeroes() { cmp -n 1048576 /dev/$1 /dev/zero; }  # both report that deallocated blocks read as zeroes
for n in $A2 $B2; do
  dd if=/dev/urandom of=/dev/$n bs=1M count=1 oflag=direct 2>/dev/null
  check "blkdiscard $n" blkdiscard -f /dev/$n
  echo 3 > /proc/sys/vm/drop_caches
  check "$n reads as zeroes after it" zeroes $n
  dd if=/dev/urandom of=/dev/$n bs=1M count=1 oflag=direct 2>/dev/null
  check "blkdiscard -z $n" blkdiscard -f -z -l 4M /dev/$n
  echo 3 > /proc/sys/vm/drop_caches
  check "$n reads as zeroes after that" zeroes $n
done

if [ "$BACKEND" != reference ]; then
  say "an illegal command, and what the drive says about it"
  beyond() { nvme read /dev/$A1 --start-block=99999999999 --data-size=512 --data=/tmp/x 2>&1 | grep -i 'LBA Out of Range'; }
  check "a read beyond the end has the right status" beyond
  remembered() { nvme error-log /dev/$CA -o json | grep -E '"error_count" *: *[1-9]'; }
  check "it is in the error log" remembered
  counted() { nvme smart-log /dev/$CA -o json | grep -E '"host_write_commands" *: *"?[1-9]'; }
  check "smart-log counts writes" counted

  say "firmware"
  dd if=/dev/urandom of=/tmp/image bs=64k count=1 2>/dev/null
  check "an image is taken" nvme fw-download /dev/$CA --fw=/tmp/image
  not_ours() { nvme fw-commit /dev/$CA --slot=0 --action=1 2>&1 | grep -i 'Invalid Firmware Image'; }
  check "and not put in the daemon's place" not_ours
  read_only() { nvme fw-commit /dev/$CA --slot=1 --action=1 2>&1 | grep -i 'Invalid Firmware Slot'; }
  check "nor in its slot, which is read-only" read_only

  say "device self-test"
  check "a short test begins" nvme device-self-test /dev/$CA --namespace-id=0xffffffff --self-test-code=1
  tested() { [ "$(nvme get-log /dev/$CA --log-id=6 --log-len=564 --raw-binary | head -c 5 | od -An -tx1 | tr -d ' ')" = 0000000010 ]; }
  check "it ends well, and the log says so" within 10 tested

  say "format"
  dd if=/dev/urandom of=/dev/$B2 bs=1M count=4 oflag=direct 2>/dev/null
  check "$B2 gets blocks of 512 bytes" nvme format /dev/$B2 --lbaf=0 --ses=1 --force
  smaller() { [ "$(cat /sys/block/$B2/queue/logical_block_size)" = 512 ]; }
  check "the kernel knows it by itself" within 10 smaller
  check "what was there is gone" zeroes $B2
  not_there() { nvme format /dev/$B2 --lbaf=2 --force 2>&1 | grep -i 'Invalid Format'; }
  check "there is no third format" not_there
  check "$B2 gets its blocks of 4096 bytes back" nvme format /dev/$B2 --lbaf=1 --force

  say "resize, seen without a rescan"
  for n in a:$A1:1 b:$B2:2; do
    drive=${n%%:*}; nsid=${n##*:}; n=${n#*:}; n=${n%:*}
    check "host resizes $n" host resize $drive $nsid 640MiB
    grown() { [ "$(sectors $n)" = 1310720 ]; }
    check "$n has grown by itself" within 10 grown
    check "the new blocks can be written" dd if=/dev/zero of=/dev/$n bs=1M count=8 seek=632 oflag=direct
  done
fi

say "resets under I/O"
under_load() { # NAME COMMAND... : the command three times on each while both drives are written and verified
  name=$1; shift
  fio --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --bs=4k --rw=randrw --iodepth=16 --size=24m \
    --time_based --runtime=6 --minimal --name=a --directory=/mnt/a --name=b --directory=/mnt/b > /tmp/load.out 2>&1 &
  load=$!
  sleep 1
  for i in 1 2 3; do
    for c in $CA $CB; do "$@" $c || fail "$name: $c"; sleep 0.3; done
  done
  if wait $load; then pass "$name: I/O goes on"; else tail -n 20 /tmp/load.out; fail "$name: I/O goes on"; fi
}
pci_reset() { echo 1 > /sys/class/nvme/$1/device/reset; }
controller_reset() { nvme reset /dev/$1; }
mkdir -p /mnt/a /mnt/b
for n in a:$A1 b:$B1; do
  mkfs.ext4 -q -F /dev/${n#*:} && mount /dev/${n#*:} /mnt/${n%:*} || fail "mount $n"
done
under_load "nvme reset" controller_reset
under_load "PCI reset" pci_reset
umount /mnt/a /mnt/b
check "e2fsck $A1 after resets" e2fsck -fn /dev/$A1
check "e2fsck $B1 after resets" e2fsck -fn /dev/$B1

say "speed: 4 KiB random reads, QD 16"
fio --name=speed --filename=/dev/$A1 --ioengine=libaio --direct=1 --bs=4k --rw=randread --iodepth=16 \
  --time_based --runtime=4 --minimal > /tmp/speed
note iops "$(cut -d';' -f8 /tmp/speed)"
note latency_us "$(cut -d';' -f40 /tmp/speed)"
say "$(cut -d';' -f8 /tmp/speed) commands/s, average latency $(cut -d';' -f40 /tmp/speed) us"

check "no complaint in the kernel log" quiet_log 'timeout|I/O error'
exit 0
