"""A writer of "newc" cpio archives, the format of a Linux initramfs.

Ours, because device nodes must get in without root, and because archives can be
concatenated: the kernel unpacks one after the other.
"""

import os

DIRECTORY, FILE, LINK, CHARDEV = 0o040000, 0o100000, 0o120000, 0o020000


class Archive:
    """Entries by path; parents are added as needed; written in an order the kernel accepts."""

    def __init__(self):
        self._entries = {}

    def __contains__(self, path):
        return path in self._entries

    def __getitem__(self, path):
        return self._entries[path][1]

    def _add(self, path, mode, data=b"", device=(0, 0)):
        parent = os.path.dirname(path)
        if parent and parent not in self._entries:
            self.directory(parent)
        self._entries[path] = (mode, data, device)

    def directory(self, path):
        self._add(path, DIRECTORY | 0o755)

    def file(self, path, data, mode=0o644):
        self._add(path, FILE | mode, data)

    def link(self, path, to):
        self._add(path, LINK | 0o777, to.encode())

    def chardev(self, path, major, minor):
        self._add(path, CHARDEV | 0o600, b"", (major, minor))

    def __len__(self):
        return len(self._entries)

    def write(self, out):
        """Parents before children, as the kernel creates in the order it reads."""
        paths = sorted(self._entries, key=lambda path: (path.count("/"), path))
        for number, path in enumerate(paths, 1):
            _record(out, number, path, *self._entries[path])
        _record(out, 0, "TRAILER!!!", 0, b"", (0, 0))


def _record(out, inode, path, mode, data, device):
    name = path.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0)
    out.write(b"070701" + b"".join(b"%08X" % field for field in fields))
    out.write(name + b"\0" * (-(110 + len(name)) % 4))
    out.write(data + b"\0" * (-len(data) % 4))
