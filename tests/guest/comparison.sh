# The comparison's guest side: the same load on the kernel's own stack and on a daemon in here, over the same kind of disk
# in memory (brd). Variables come from comparison.py: CELLS ("read 4096 1 ..."), ROUNDS, SECONDS, DAEMON, FOLDER, SOCKETS.
for module in dm-crypt aesni-intel xts ecb nvmet nvme-loop; do modprobe -q $module; done
modprobe brd rd_nr=7 rd_size=65536 || { fail "disks in memory"; exit 1; }
echo /usr/bin/modprobe > /proc/sys/kernel/modprobe
KEY=$(od -An -v -tx1 /key | tr -d ' \n')
for n in 0 1 2 3 4 5 6; do dd if=/dev/urandom of=/dev/ram$n bs=1M count=64 2>/dev/null; done

# crypt NAME DISK : dm-crypt as cryptsetup sets it up, with sectors of 4096 bytes
crypt() {
  dmsetup create --noudevsync --noudevrules $1 --table "0 131072 crypt aes-xts-plain64 $KEY 0 /dev/$2 0 1 sector_size:4096"
  dmsetup mknodes $1
}
# Linux's NVMe target and host, without a network between them.
nvme_loop() { # DEVICE
  mount -t configfs none /sys/kernel/config 2>/dev/null
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
check "nvmet over it" nvme_loop /dev/mapper/below
check "its drive" within 10 loop_drive
mkdir -p $FOLDER
(umask 077; cat /key > $FOLDER/key)
$DAEMON function run encrypt --socket $FOLDER/function.sock --readable $FOLDER/key 2> $FOLDER/function.log &
check "the function's process" within 20 listens $FOLDER/function.sock
$DAEMON serve -c /sluice.toml 2> $FOLDER/log &
for socket in $SOCKETS; do check "a daemon's drive" within 30 listens $socket || tail $FOLDER/log; done
grep -h -A 5 '^name.*xts(aes)' /proc/crypto | grep '^driver' | head -n 1 > /tmp/driver
note cipher "$(cut -d: -f2 /tmp/driver)"

# The stacks, as words of a path and its name.
STACKS="/dev/ram0=disk /dev/mapper/plain=dm-crypt /dev/$(loop_drive)=nvmet+dm-crypt $(for s in $SOCKETS; do
  d=$(dirname $s); echo "$s=$(basename $d)"; done)"
for round in $(seq $ROUNDS); do
  printf '%s\n' "$CELLS" | while read -r operation bytes depth; do
    for stack in $STACKS; do
      numbers=$(/load ${stack%%=*} $operation $bytes $depth 64 $SECONDS_EACH) || { fail "load on $stack"; continue; }
      note "$round/${stack##*=}/$operation/$bytes/$depth" "$numbers"
    done
  done
done
quiet_log() { ! dmesg | grep -E 'I/O error|Call Trace|BUG:|WARNING:'; }
check "no complaint in the kernel log" quiet_log
check "none in the daemon's" sh -c "! grep -e ERROR -e panicked $FOLDER/log $FOLDER/function.log"
exit 0
