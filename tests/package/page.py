"""Pages of docs/howto, out of which tests take the commands that they execute; and a guest that writes under deaths."""
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "guest"))

import guest

# What the guest does: random writes that it verifies. `note writes` is the sign for the daemon's death.
SCRIPT = """
there() { [ -b /dev/nvme0n1 ]; }
within 30 there || { dmesg | grep -i nvme | tail -n 20; fail "the guest has the drive"; exit 1; }
pass "the guest has the drive"
check "a file system" mkfs.ext4 -q /dev/nvme0n1
mkdir -p /mnt/a && mount -t ext4 /dev/nvme0n1 /mnt/a
note writes begin
check "its writes are verified" fio --ioengine=libaio --filename=/mnt/a/file --direct=1 --name=a --bs=4k --rw=randwrite --iodepth=16 \\
  --size=4m --rate_iops=500 --verify=crc32c --verify_fatal=1 --do_verify=1 --loops=1000 --time_based --runtime=20 --minimal
check "umount" umount /mnt/a
check "e2fsck" e2fsck -fn /dev/nvme0n1
check "no complaint in the kernel log" quiet_log 'timeout|I/O [Ee]rror|aborting|resetting|Remounting'
exit 0
"""


class Page:
    """A page of docs/howto."""

    def __init__(self, name):
        self.name = name
        with open(os.path.join(guest.ROOT, "docs", "howto", name)) as file:
            self.text = file.read()

    def block(self, language, word):
        """The one block in a language that has a word, without its indentation."""
        fences = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", self.text, re.MULTILINE | re.DOTALL)
        found = [re.sub("^" + indent, "", block, flags=re.MULTILINE)
                 for indent, its, block in fences if its == language and word in block]
        if len(found) != 1:
            raise guest.GuestError("%s has %d blocks with %r" % (self.name, len(found), word))
        return found[0]

    def has(self, command):
        """Returns a command, which the page must have."""
        if command not in self.text:
            raise guest.GuestError("%s lacks: %s" % (self.name, command))
        return command


def within(seconds, true):
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit:
            return False
        time.sleep(0.1)
    return True
