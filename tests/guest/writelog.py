"""Reads the log of QEMU's blklogwrites driver and builds the disks a power cut could have left.

A write is logged when it is done, a flush likewise. What is in the log before a flush is therefore
on the medium once that flush is in the log; of what comes after the last flush, any part may be.
"""

import random
import struct

FLUSH, DISCARD = 1, 4
SECTOR = 4096  # of the disk too: what it writes in one piece also survives as one


class Write:
    """One logged write: where it went, where its data is in the log, where its entry ends."""

    def __init__(self, flags, sector, sectors, data, end):
        self.flags, self.sector, self.sectors, self.data, self.end = flags, sector, sectors, data, end


def virtio(node):
    """QEMU's description of a virtio disk with a volatile cache; its serial is the node's name."""
    return "virtio-blk-pci,drive=%s,serial=%s,write-cache=on,logical_block_size=%d,physical_block_size=%d" % (
        node, node, SECTOR, SECTOR)


def qemu_args(disk, log):
    """A virtio disk (/dev/vda) whose writes are logged."""
    return [
        "-blockdev", "driver=file,filename=%s,node-name=disk,discard=unmap" % disk,
        "-blockdev", "driver=file,filename=%s,node-name=log" % log,
        "-blockdev", "driver=blklogwrites,file=disk,log=log,log-sector-size=%d,node-name=logged" % SECTOR,
        "-device", virtio("logged"),
    ]


def read_log(file):
    """All entries, in the order they became true."""
    magic, _, count, sector_size = struct.unpack("<QQQI", file.read(28))
    assert magic == 0x6A736677736872 and sector_size == SECTOR, "this is no write log"
    entries, position = [], SECTOR
    for _ in range(count):
        file.seek(position)
        sector, sectors, flags, _ = struct.unpack("<QQQQ", file.read(32))
        data = position + SECTOR
        position = data if flags & DISCARD else data + sectors * SECTOR
        entries.append(Write(flags, sector, sectors, data, position))
    return entries


def apply(log, disk, entry, sectors):
    """The first `sectors` of an entry onto the disk."""
    log.seek(entry.data)
    data = bytes(sectors * SECTOR) if entry.flags & DISCARD else log.read(sectors * SECTOR)
    disk.seek(entry.sector * SECTOR)
    disk.write(data)


def cut(log, entries, position, path, size, seed):
    """Writes to `path` a disk as it may be after a power cut when the log was `position` long;
    returns how many writes had not been flushed."""
    chance = random.Random(seed)
    happened = [entry for entry in entries if entry.end <= position]
    flushed = max((number for number, entry in enumerate(happened) if entry.flags & FLUSH), default=-1) + 1
    with open(path, "wb") as disk:
        disk.truncate(size)
        for number, entry in enumerate(happened):
            # after the last flush: all of a write, nothing, or its beginning
            kept = entry.sectors
            if number >= flushed:
                kept = chance.choice((0, entry.sectors, chance.randint(0, entry.sectors)))
            if kept:
                apply(log, disk, entry, kept)
    return len(happened) - flushed
