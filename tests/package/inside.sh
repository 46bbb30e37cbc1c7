# Follows docs/howto/install.md in a fresh Debian with systemd, up to the purge.
stty -F /dev/ttyS1 raw -echo
cd /root
IMAGES=/var/lib/sluice/images

# page COMMAND : executes a command of the page, which must be there, with sizes in MiB
page() {
  grep -qE "^ *$(printf '%s' "$*" | sed 's/[][\.*^$/]/\\&/g')\$" install.md || { echo "docs/howto/install.md lacks: $*"; return 1; }
  sh -c "$(printf '%s' "$*" | sed 's/GiB/MiB/; s/^apt install/apt-get -qq -y install/')"
}
main_pid() { systemctl show -p MainPID --value "${1:-sluice}"; }
is() { [ "$("$@" 2>&1)" = "$WANT" ] || { echo "$* printed: $("$@" 2>&1)"; echo "and not: $WANT"; return 1; }; }
# Everything but places whose content changes while a system runs.
snapshot() { find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/log -o -path /var/cache \
  -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/tmp -o -path /root \) -prune -o -print | sort; }
has_drive() { sluice drive list | grep -q "^$1 "; }
another_pid() { now=$(main_pid "$2"); [ "$now" != 0 ] && [ "$now" != "$1" ]; }
connected() { [ -b "/dev/$1" ]; }
written() {
  connected "$1" && head -c 8M /dev/urandom > "$1" && dd if="$1" of="/dev/$1" bs=128k oflag=direct conv=fsync 2>&1
}
read_back() { connected "$1" && dd if="/dev/$1" bs=128k count=64 iflag=direct 2>/dev/null | cmp - "$1"; }
# deaths COUNT : the daemon dies so often, while the client writes
deaths() {
  written nvme2n1 || return
  while [ ! -e enough ]; do dd if=nvme2n1 of=/dev/nvme2n1 bs=16k oflag=direct 2>&1 || exit; done > loop &
  writer=$! code=0
  for _ in $(seq "$1"); do
    old=$(main_pid)
    systemctl kill -s KILL sluice; within 30 another_pid "$old" && within 30 systemctl is-active -q sluice || code=1
    sleep 1
  done
  touch enough; wait $writer || { cat loop; code=1; }
  rm enough
  [ $code = 0 ] && read_back nvme2n1
}
unbroken() { ! journalctl -q -u client -p warning | grep . && ! dmesg | grep -E 'nvme2: .*(timeout|reconnect|error)'; }

# The modules came with the kernel of this guest, after the image was made.
depmod 2>/dev/null
snapshot > before

check "apt installs the package" page 'apt install ./sluice_*.deb'
check "the daemon runs" page systemctl is-active sluice
check "so does the holder" page systemctl is-active sluice-holder
WANT=sluice check "as a user of its own" is stat -c %U "/proc/$(main_pid)"
WANT=0000000000000000 check "without capabilities" is awk '/^CapBnd/ {print $2}' "/proc/$(main_pid)/status"
WANT='750 sluice' check "its state is its own" is stat -c '%a %U' /var/lib/sluice
check "the log has no error" sh -c '! journalctl -q -u sluice -p warning | grep .'
check "the units have not failed" sh -c '! systemctl is-failed -q sluice sluice-holder'

check "nothing is missing" page sluice doctor
check "a drive is created" page sluice drive create first --file $IMAGES/first.img --size 20GiB
check "the drive is listed" page sluice drive list
check "the drive can be attached" page sluice drive attach first --print qemu
check "reload" systemctl reload sluice

sed -i '/socket_group/! s/^#\([^ ]\)/\1/; s/GiB/MiB/' /etc/sluice/sluice.toml
check "the file of the page is right" page sluice serve --check -c /etc/sluice/sluice.toml
check "restart" page systemctl restart sluice
check "the drives are there again" has_drive first
check "nvme-tcp" page modprobe nvme-tcp
check "a host connects" page nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2024-01.org.example:disk
check "the host has the drive" within 20 connected nvme1n1
check "it writes" written nvme1n1
check "it reads the same" read_back nvme1n1

check "a function in a process of its own" sluice function attach scratch pass
check "a classifier, compiled in the daemon" sluice classifier attach scratch /usr/lib/sluice/observe.o
# Another daemon is the client of vfio-user, as QEMU is in a larger machine, and this kernel is its host.
cat > client.toml <<'END'
[daemon]
api = "/run/client/api.sock"
sockets = "/run/client/drives"
state = "/run/client/state"
[tcp]
listen = ["127.0.0.1:4421"]
[[drive]]
name = "through"
[drive.tcp]
nqn = "nqn.2024-01.org.example:through"
[[drive.namespace]]
target = "nvme"
nvme = { vfio_user = "/run/sluice/drives/first/cntrl", timeout_s = 60 }
END
check "a client of vfio-user" systemd-run -q --unit client -p Type=notify -p RuntimeDirectory=client sluice serve -c /root/client.toml
check "a host of the client" nvme connect -t tcp -a 127.0.0.1 -s 4421 -n nqn.2024-01.org.example:through
check "has the drive" within 20 connected nvme2n1
check "deaths of the daemon while the client writes" deaths 3
check "the client's connection is unbroken" unbroken
holder=$(main_pid sluice-holder)
systemctl kill -s KILL sluice-holder
check "the holder is restarted" within 20 another_pid "$holder" sluice-holder
check "a death of the daemon after one of the holder" deaths 1
check "the connection is still unbroken" unbroken
holder=$(main_pid sluice-holder)

# Other than of its deaths.
check "the log has no refusal" sh -c '! journalctl -q -u sluice -p warning | grep -v -E "systemd\[1\]: sluice.service: (Main process exited, code=killed|Failed with result .signal)" | grep .'

check "the host connects again after these deaths" within 60 read_back nvme1n1
dmesg -C
old=$(main_pid)
check "the package is installed again" dpkg -i sluice_*.deb
WANT=$old check "under the same daemon, which has a drive in memory" is main_pid
sed -i '/^# A drive in memory/,$d' /etc/sluice/sluice.toml
check "that drive goes" sluice reload
check "a newer package" sh -c "cd newer && apt-get -qq -y install ./sluice_*.deb"
WANT="$(dpkg-deb -f newer/sluice_*.deb Version)" check "its version" dpkg-query -W -f '${Version}' sluice
check "under another daemon" another_pid "$old"
check "the service runs" systemctl is-active sluice
WANT=$holder check "the holder goes on" main_pid sluice-holder
check "the host has not noticed" read_back nvme1n1
check "the client has not noticed" read_back nvme2n1
check "nor has its connection" unbroken
check "the host is connected as before" sh -c '! dmesg | grep -i reconnect'
check "a death of the newer daemon" deaths 1
check "does not break the client's connection" unbroken
nvme disconnect -n nqn.2024-01.org.example:through; systemctl stop client
mkdir -p /run/systemd/system/sluice.service.d
printf '[Service]\nWatchdogSec=10\n' > /run/systemd/system/sluice.service.d/short.conf
systemctl daemon-reload; systemctl restart sluice
check "the host connects again" within 60 read_back nvme1n1
old=$(main_pid); sluice upgrade
check "upgrade" another_pid "$old"
old=$(main_pid)
# Longer than the limit. The pings come three times as often.
sleep 15
WANT=$old check "the watchdog leaves a daemon alone that answers" is main_pid
kill -STOP "$old"
check "the watchdog replaces a daemon that hangs" within 60 another_pid "$old"
check "the host goes on with what it wrote" within 60 read_back nvme1n1
nvme disconnect-all
rm -r /run/systemd/system/sluice.service.d

check "remove" apt-get -qq -y remove sluice
WANT=inactive check "the daemon is stopped" is systemctl is-active sluice
WANT=inactive check "the holder is stopped" is systemctl is-active sluice-holder
check "purge" apt-get -qq -y purge sluice
snapshot > after
check "nothing is left but data" sh -c 'diff before after | grep "^[<>]" | grep -v -E "^> (/var/lib/sluice(/.*)?|/etc/(passwd|group|shadow|gshadow)-)$" > left; ! grep . left'
check "nor any run-time state" sh -c '! find /run /etc/systemd /var/lib/systemd -name "*sluice*" | grep .'
WANT=8 check "the data is left" is sh -c "du -m $IMAGES/disk.img | cut -f1"
WANT=sluice check "with its owner" is stat -c %U $IMAGES/disk.img
