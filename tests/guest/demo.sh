# The demonstration's guest side. "step ..." lines become headings on the screen, "row ..." lines of the summary.
step() { tell step "$@"; }
row() { tell row "$1 = $2"; }
drop_caches() { sync; echo 3 > /proc/sys/vm/drop_caches; }
set -e

step "Linux finds a standard NVMe controller"
disk=/dev/nvme0n1
within 15 test -b $disk
lspci -s "$(cat /sys/class/nvme/nvme0/address)"
nvme list
row "kernel driver" "$(basename "$(readlink -f /sys/class/nvme/nvme0/device/driver)"), the one Linux comes with"
row "I/O queues" "$(ls /sys/block/${disk#/dev/}/mq | wc -l), one for each virtual CPU"

step "A file system on it"
mkfs.ext4 -q -F $disk
mount $disk /mnt
df -h /mnt

step "16 MiB of random data are written, and compared after the caches are dropped"
dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
cp /tmp/data /mnt/data
drop_caches
umount /mnt; mount $disk /mnt
wanted=$(sha256sum < /tmp/data | cut -c1-32) found=$(sha256sum < /mnt/data | cut -c1-32)
echo "written: $wanted"
echo "read:    $found"
[ "$wanted" = "$found" ]
row "written and read back" "16 MiB, SHA-256 equal"

step "fio writes 16 MiB at random, 32 commands at a time, and verifies every block"
fio --name=verify --filename=/mnt/fio --size=16m --rw=randwrite --bs=4k --iodepth=32 --ioengine=libaio --direct=1 \
  --verify=crc32c --verify_fatal=1 --eta=never --output=/tmp/fio
grep -E '^ +(read|write):' /tmp/fio | sed 's/^ *//'
row "verified by fio" "4096 blocks, crc32c"
rm /mnt/fio

step "How fast is it (4 KiB random reads, 16 at a time)"
fio --name=speed --filename=$disk --size=48m --rw=randread --bs=4k --iodepth=16 --ioengine=libaio --direct=1 \
  --time_based --runtime=3 --minimal > /tmp/speed
speed="$(cut -d';' -f8 /tmp/speed) commands/s, $(cut -d';' -f40 /tmp/speed | cut -d. -f1) us on average"
echo "$speed"
row "4 KiB random reads, QD 16" "$speed"

step "Clean?"
umount /mnt
e2fsck -fn $disk 2>&1 | tail -n 1
nvme smart-log $disk | grep -iE 'Data Units|host_.*_commands|media_errors' | tr -s '\t' ' '
row "file system check" clean
row "commands the drive counted" \
  "$(nvme smart-log $disk -o json | sed -n 's/.*"host_\(read\|write\)_commands" *: *"\{0,1\}\([0-9]*\).*/\2 \1s/p' | paste -s -d, | sed 's/,/, /')"

step "Power off"
