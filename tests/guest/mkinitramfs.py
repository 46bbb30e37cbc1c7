"""The parts of a guest that come out of unpacked Debian packages; called by mkguest.sh.

  mkinitramfs.py tools ROOT OUT PROGRAM...    the programs with the libraries they need, and busybox
  mkinitramfs.py modules DIR OUT MODULE...    the modules with those they depend on
  mkinitramfs.py kernel VMLINUZ OUT           the ELF image inside (it boots faster: no unpacking in the guest),
                                              or the kernel as it is when its packing is LZ4 (quick to unpack)
"""

import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from cpio import Archive

LIBRARY_DIRS = ("usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu/ceph")
LOADER = "ld-linux-x86-64.so.2"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write_archive(archive, path):
    with open(path, "wb") as out:
        archive.write(out)
    print("  %s: %d files, %.0f MiB" % (os.path.basename(path), len(archive), os.path.getsize(path) / 2**20))


# --- tools -----------------------------------------------------------------------------


def libraries_of(path):
    """Names of the shared libraries (and the loader) an ELF file asks for."""
    text = subprocess.run(["readelf", "-d", "-l", path], capture_output=True, text=True).stdout
    loader = re.findall(r"program interpreter: (.*?)\]", text)
    return re.findall(r"\(NEEDED\).*\[(.*?)\]", text) + [os.path.basename(name) for name in loader]


def add_libraries(archive, root, path):
    for name in libraries_of(path):
        inside = "usr/lib/x86_64-linux-gnu/" + name
        if inside in archive:
            continue
        found = next((p for p in (os.path.join(root, d, name) for d in LIBRARY_DIRS) if os.path.exists(p)), None)
        if found is None:
            sys.exit("error: %s needs %s, which no package of the closure holds" % (path, name))
        archive.file(inside, read(found), 0o755)
        add_libraries(archive, root, os.path.realpath(found))


def add_busybox(archive, root):
    path = next(p for p in (root + "/usr/bin/busybox", root + "/bin/busybox") if os.path.exists(p))
    archive.file("usr/bin/busybox", read(path), 0o755)
    for applet in subprocess.run([path, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if not any(folder + applet in archive for folder in ("usr/bin/", "usr/sbin/")):
            archive.link("usr/bin/" + applet, "busybox")


def make_tools(root, out, *programs):
    archive = Archive()
    for folder in ("proc", "sys", "dev", "tmp", "mnt", "run", "etc", "root", "usr/lib64"):
        archive.directory(folder)
    for folder in ("bin", "sbin", "lib", "lib64"):
        archive.link(folder, "usr/" + folder)
    archive.link("usr/lib64/" + LOADER, "../lib/x86_64-linux-gnu/" + LOADER)
    archive.chardev("dev/console", 5, 1)
    archive.chardev("dev/null", 1, 3)
    for program in programs:
        path = os.path.realpath(os.path.join(root, program))
        archive.file(program, read(path), 0o755)
        add_libraries(archive, root, path)
    archive.link("usr/sbin/mkfs.ext4", "mke2fs")
    archive.file("etc/mke2fs.conf", read(root + "/etc/mke2fs.conf"))
    add_busybox(archive, root)
    write_archive(archive, out)


# --- modules ---------------------------------------------------------------------------


def load_module(path):
    """The module unpacked and without debug information."""
    data = read(path)
    if path.endswith(".xz"):
        data = lzma.decompress(data)
    elif path.endswith(".zst"):
        data = subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout
    with tempfile.NamedTemporaryFile(suffix=".ko") as file:
        file.write(data)
        file.flush()
        subprocess.run(["strip", "-g", file.name], check=True)
        return read(file.name)


class Modules:
    """The modules of one kernel: which exist, which are built in, which were taken."""

    def __init__(self, folder):
        self.paths, self.taken, self.depends = {}, {}, {}
        for where, _, names in os.walk(folder):
            for name in names:
                match = re.match(r"(.+)\.ko(\.xz|\.zst)?$", name)
                if match:
                    self.paths[match.group(1).replace("-", "_")] = os.path.join(where, name)

    def take(self, name):
        """Takes a module and all it needs; one that is built in, or not in this kernel, is skipped."""
        name = name.replace("-", "_")
        if name in self.taken or name not in self.paths:
            return
        data = self.taken[name] = load_module(self.paths[name])
        self.depends[name] = info(data, "depends")
        for other in self.depends[name] + [s for line in info(data, "softdep=pre: ", " ") for s in line.split()]:
            self.take(other)

    def all_depends(self, name):
        found = []
        for other in self.depends[name]:
            if other in self.depends and other not in found:
                found += [other] + [o for o in self.all_depends(other) if o not in found]
        return found


def info(data, key, separator=","):
    """Values of a .modinfo key, as module names."""
    key = key if "=" in key else key + "="
    values = re.findall(rb"\0" + re.escape(key.encode()) + rb"([^\0]*)\0", data)
    return [v.replace("-", "_") for line in values for v in line.decode().split(separator) if v]


def make_modules(folder, out, *names):
    modules = Modules(folder)
    for name in names:
        modules.take(name)
    archive, base = Archive(), "usr/lib/modules/%s/" % os.path.basename(folder)
    depends, aliases = [], []
    for name, data in modules.taken.items():
        archive.file(base + name + ".ko", data)
        depends.append("%s.ko: %s\n" % (name, " ".join(other + ".ko" for other in modules.all_depends(name))))
        aliases += ["alias %s %s\n" % (a.decode(), name) for a in re.findall(rb"\0alias=([^\0]*)\0", data)]
    archive.file(base + "modules.dep", "".join(depends).encode())
    archive.file(base + "modules.alias", "".join(aliases).encode())
    write_archive(archive, out)


# --- kernel ----------------------------------------------------------------------------

UNPACKERS = {
    b"\x28\xb5\x2f\xfd": ["zstd", "-dc"],
    b"\xfd7zX": ["xz", "-dc", "--single-stream"],
    b"\x1f\x8b\x08\x00": ["gzip", "-dc"],
}
LZ4 = b"\x02\x21\x4c\x18"


def make_kernel(vmlinuz, out):
    """Cuts the compressed payload out of a bzImage (boot protocol 2.08: offsets in the setup header)."""
    data = read(vmlinuz)
    sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = data[start : start + length]
    if payload[:4] == LZ4:
        shutil.copyfile(vmlinuz, out)
        return
    # the tools complain about what follows their stream, but unpack it
    elf = subprocess.run(UNPACKERS[payload[:4]], input=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    if elf[:4] != b"\x7fELF":
        sys.exit("error: no ELF image inside %s" % vmlinuz)
    with open(out, "wb") as file:
        file.write(elf)


if __name__ == "__main__":
    {"tools": make_tools, "modules": make_modules, "kernel": make_kernel}[sys.argv[1]](*sys.argv[2:])
