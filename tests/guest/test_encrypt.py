#!/usr/bin/env python3
"""What Sluice's `encrypt` stores is what dm-crypt's aes-xts-plain64 stores, seen from both sides.

  test_encrypt.py [--kernels 6.1 7.3]

Two boots, and a pair of drives for each layout of sectors, one of which a LUKS2 header describes. In the first one drive is written through Sluice's encrypt
and the other, a plain one, through the guest's dm-crypt; in the second it is the other way round, and both are read.
The drives are larger than 2 TiB, where plain64 differs from plain.
"""

import argparse
import os
import random
import shutil
import sys

import guest
import sluice
from report import Report

TIMEOUT_S = 120
SIZE = 3 << 40
PATTERN_BYTES = 1 << 20
OFFSETS = (0, (1 << 30) + 8 * 4096, (5 << 39) + 4096, SIZE - PATTERN_BYTES)
ZEROES = 1 << 31  # where a megabyte of zeroes is written

SCRIPT = """
for module in dm-crypt aesni-intel xts ecb; do modprobe -q $module; done  # built in, some of them, some kernels
echo /usr/bin/modprobe > /proc/sys/kernel/modprobe
KEY=$(od -An -v -tx1 /key | tr -d ' \\n')

# crypt NAME DEVICE LAYOUT : the device as dm-crypt sees it
crypt() {
  case $3 in
    512) more= ;;
    4096) more="1 sector_size:4096" ;;
    large) more="2 sector_size:4096 iv_large_sectors" ;;
    luks) DM_DISABLE_UDEV=1 cryptsetup open --disable-keyring --header /header --key-file /passphrase /dev/$2 $1; return ;;
  esac
  dmsetup create --noudevsync --noudevrules $1 --table "0 $(sectors $2) crypt aes-xts-plain64 $KEY 0 /dev/$2 0 $more"
  dmsetup mknodes $1
}
fill() { # DEVICE
  for offset in $OFFSETS; do
    dd if=/pattern of=$1 bs=64k seek=$offset oflag=direct,seek_bytes 2>/dev/null || return 1
  done
  blkdiscard -z -o $ZEROES -l 1M $1
}
same() { # DEVICE
  for offset in $OFFSETS; do
    dd if=$1 bs=64k count=16 skip=$offset iflag=direct,skip_bytes 2>/dev/null | cmp - /pattern || return 1
  done
  dd if=$1 bs=64k count=16 skip=$ZEROES iflag=direct,skip_bytes 2>/dev/null | cmp -n 1048576 - /dev/zero
}
differs() { ! dd if=$1 bs=64k count=16 iflag=direct 2>/dev/null | cmp -s - /pattern; }

# both ROLE PLAIN_ADDRESS ENCRYPTED_ADDRESS LAYOUT
both() {
  within 15 namespace_of $3 1 > /dev/null || { fail "the drives appear"; exit 1; }
  plain=$(namespace_of $2 1) encrypted=$(namespace_of $3 1)
  check "$4, dm-crypt takes the plain drive" crypt c$2 $plain $4
  if [ $1 = write ]; then
    check "$4, written through Sluice" fill /dev/$encrypted
    check "$4, written through dm-crypt" fill /dev/mapper/c$2
  else
    check "$4, dm-crypt reads what Sluice wrote" same /dev/mapper/c$2
    check "$4, Sluice reads what dm-crypt wrote" same /dev/$encrypted
  fi
  check "$4, not to be read below" differs /dev/$plain
  dmsetup remove --noudevsync c$2
}
"""

# By the names that the script has for them: bytes of a block, where the function is placed, its options. The header
# was made by cryptsetup; its disks have sectors of 4096 bytes.
LAYOUTS = {
    "512": (512, "process", {"key_file": "key"}),
    "4096": (4096, "daemon", {"key_file": "key", "sector_size": "4096"}),
    "large": (4096, "process", {"key_file": "key", "sector_size": "4096", "large_sectors": "yes"}),
    "luks": (4096, "process", {"key_file": "passphrase", "luks": "header"}),
}
HEADER = os.path.join(guest.ROOT, "crates", "crypt", "tests", "data", "argon2id.luks2")
PASSPHRASE = b"correct horse battery staple"


def namespace(folder, name, layout, encrypted):
    """A drive on the image of this name, plain or through encrypt."""
    block_size, place, options = LAYOUTS[layout]
    files = {key: os.path.join(folder, value) if key in ("key_file", "luks") else value for key, value in options.items()}
    words = ", ".join('%s = "%s"' % option for option in files.items())
    function = '{ kind = "uif", function = "encrypt", place = "%s", options = { %s } }' % (place, words)
    return [sluice.Namespace("file", "%dTiB" % (SIZE >> 40), block_size, os.path.join(folder, name + ".img"),
                             ["functions = [ %s ]" % function] if encrypted else [])]


def boot(report, folder, kernel, role):
    """One boot. An image `s` is written through Sluice and an image `d` through dm-crypt."""
    drives, script = {}, [SCRIPT, "OFFSETS='%s' ZEROES=%d" % (" ".join(map(str, OFFSETS)), ZEROES)]
    for number, layout in enumerate(LAYOUTS):
        ours, theirs = "s%d" % number, "d%d" % number
        plain, encrypted = (theirs, ours) if role == "write" else (ours, theirs)
        drives[plain] = namespace(folder, plain, layout, False)
        drives[encrypted] = namespace(folder, encrypted, layout, True)
        script.append("both %s 0000:00:%02x.0 0000:00:%02x.0 %s" % (role, 4 + 2 * number, 5 + 2 * number, layout))
    files = {name: os.path.join(folder, name) for name in ("pattern", "key", "passphrase", "header")}
    # One daemon's folder: the images are known to its state.
    with sluice.Daemon(os.path.join(folder, "daemon"), drives) as daemon:
        run = guest.Guest(kernel, "\n".join(script) + "\nexit 0\n", daemon.sockets(), timeout_s=TIMEOUT_S, files=files)
        report.guest(run, "%s, Linux %s" % (role, kernel))
        report.ended(daemon, "%s: " % role)


def secret(path, data):
    """A file that is its owner's alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data)


def run(report, kernels=("6.1", "7.3")):
    report.theme("encrypt: Sluice and dm-crypt read each other, Linux %s and %s" % tuple(kernels))
    with guest.scratch() as folder:
        bits = random.Random(4)
        secret(os.path.join(folder, "key"), bits.randbytes(64))
        secret(os.path.join(folder, "pattern"), bits.randbytes(PATTERN_BYTES))
        secret(os.path.join(folder, "passphrase"), PASSPHRASE)
        shutil.copy(HEADER, os.path.join(folder, "header"))
        try:
            for kernel, role in zip(kernels, ("write", "read")):
                os.makedirs(os.path.join(folder, "daemon"), exist_ok=True)
                boot(report, folder, kernel, role)
        except guest.GuestError as error:
            report.check("encrypt", False, str(error))


def main():
    guest.end_politely()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs=2, default=("6.1", "7.3"), choices=guest.KERNELS)
    options = parser.parse_args()
    report = Report()
    run(report, options.kernels)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
