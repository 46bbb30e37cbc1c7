# The comparison's guest side: the same load on the kernel's own stack and on a daemon in here, over the same kind of disk
# in memory (brd). Variables come from comparison.py: CELLS ("read 4096 1 ..."), ROUNDS, SECONDS, DAEMON, FOLDER, SOCKETS, REPLICATES.
for module in dm-crypt dm-mirror aesni-intel xts ecb nvmet nvme-loop target_core_iblock vhost_scsi; do modprobe -q $module; done
modprobe brd rd_nr=19 rd_size=65536 || { fail "disks in memory"; exit 1; }
echo /usr/bin/modprobe > /proc/sys/kernel/modprobe
mount -t configfs none /sys/kernel/config 2>/dev/null
KEY=$(od -An -v -tx1 /key | tr -d ' \n')
# What is on a disk matters to nobody, only that there is something: but a log begins as zeros.
dd if=/dev/urandom of=/dev/ram0 bs=1M count=64 2>/dev/null
for n in $(seq 18); do case $n in 9|12|15|18) ;; *) dd if=/dev/ram0 of=/dev/ram$n bs=1M 2>/dev/null ;; esac; done

# device NAME TABLE : a device of the device mapper
device() {
  dmsetup create --noudevsync --noudevrules $1 --table "0 131072 $2" && dmsetup mknodes $1
}
# crypt NAME DISK : dm-crypt as cryptsetup sets it up, with sectors of 4096 bytes
crypt() { device $1 "crypt aes-xts-plain64 $KEY 0 /dev/$2 0 1 sector_size:4096"; }
# mirror NAME LOG DISK DISK : dm-mirror of two disks that are equal, with its log on a disk as LVM sets it up
mirror() { device $1 "mirror disk 3 /dev/$2 1024 nosync 2 /dev/$3 0 /dev/$4 0 1 handle_errors"; }
# scsi NUMBER DEVICE : a target of vhost-scsi, naa.500140500000000NUMBER, with blocks of 4096 bytes
scsi() {
  target=/sys/kernel/config/target disk=core/iblock_$1/disk port=vhost/naa.500140500000000$1/tpgt_1
  mkdir -p $target/$disk && echo "udev_path=$2" > $target/$disk/control && echo 1 > $target/$disk/enable &&
    echo 4096 > $target/$disk/attrib/block_size &&
    mkdir -p $target/$port/lun/lun_0 && echo naa.500140500000001$1 > $target/$port/nexus &&
    ln -s $target/$disk $target/$port/lun/lun_0/disk
}
# Linux's NVMe target and host, without a network between them.
nvme_loop() { # DEVICE
  cd /sys/kernel/config/nvmet && mkdir -p subsystems/c/namespaces/1 ports/1 && echo 1 > subsystems/c/attr_allow_any_host &&
    printf %s $1 > subsystems/c/namespaces/1/device_path && echo 1 > subsystems/c/namespaces/1/enable &&
    echo loop > ports/1/addr_trtype && ln -s /sys/kernel/config/nvmet/subsystems/c ports/1/subsystems/c && cd - > /dev/null &&
    nvme connect -t loop -n c -q nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001 \
      -I 00000000-0000-0000-0000-000000000001
}
loop_drive() {
  for c in /sys/class/nvme/nvme*; do
    [ "$(cat $c/transport)" = loop ] && basename "$(ls -d $c/nvme*n* | head -n 1)" | sed 's/c[0-9]*n/n/' && return
  done
  return 1
}
listens() { [ -S $1 ]; }

check "dm-crypt" crypt plain ram1
check "dm-crypt for nvmet" crypt below ram2
check "dm-crypt for vhost-scsi" crypt virtual ram3
check "nvmet over it" nvme_loop /dev/mapper/below
check "its drive" within 10 loop_drive
check "vhost-scsi over it" scsi 1 /dev/mapper/virtual
check "dm-mirror" mirror twice ram9 ram7 ram8
check "dm-mirror for vhost-scsi" mirror virtual-twice ram12 ram10 ram11
check "vhost-scsi over it, too" scsi 2 /dev/mapper/virtual-twice
mkdir -p $FOLDER
(umask 077; cat /key > $FOLDER/key)
$DAEMON function run encrypt --socket $FOLDER/encrypt.sock --readable $FOLDER/key 2> $FOLDER/function.log &
$DAEMON function run replicate --socket $FOLDER/replicate.sock 2>> $FOLDER/function.log &
for function in encrypt replicate; do check "the process of $function" within 20 listens $FOLDER/$function.sock; done
$DAEMON serve -c /sluice.toml 2> $FOLDER/log &
for socket in $SOCKETS; do check "a daemon's drive" within 30 listens $socket || tail $FOLDER/log; done
export SLUICE_API=$FOLDER/api.sock
in_sync() { $DAEMON function tell $1 status | grep -q '"state":"in sync"'; }
for drive in $REPLICATES; do
  # A block device is never taken for new.
  check "$drive: its set is begun" $DAEMON function tell $drive "copy from 0"
  check "$drive: its classifier" $DAEMON classifier attach $drive /replicate.o
  check "$drive: both copies are equal" within 60 in_sync $drive
done
grep -h -A 5 '^name.*xts(aes)' /proc/crypto | grep '^driver' | head -n 1 > /tmp/driver
note cipher "$(cut -d: -f2 /tmp/driver)"

# The stacks, as words of a path and its name.
STACKS="/dev/ram0=disk /dev/mapper/plain=dm-crypt naa.5001405000000001=vhost-scsi+dm-crypt /dev/$(loop_drive)=nvmet+dm-crypt
/dev/mapper/twice=dm-mirror naa.5001405000000002=vhost-scsi+dm-mirror $(for s in $SOCKETS; do
  d=$(dirname $s); echo "$s=$(basename $d)"; done)"
for round in $(seq $ROUNDS); do
  printf '%s\n' "$CELLS" | while read -r operation bytes depth; do
    for stack in $STACKS; do
      numbers=$(/load ${stack%%=*} $operation $bytes $depth 64 $SECONDS_EACH) || { fail "load on $stack"; continue; }
      note "$round/${stack##*=}/$operation/$bytes/$depth" "$numbers"
    done
  done
done
check "no complaint in the kernel log" quiet_log 'I/O error'
# The sets are begun by an order, since block devices may have been used before. Until then they say so.
begun='the log is blank|a function cannot start.*NAMESPACE_NOT_READY'
check "none in the daemon's" sh -c "! grep -h -e ERROR -e panicked $FOLDER/log $FOLDER/function.log | grep -E -v '$begun'"
exit 0
