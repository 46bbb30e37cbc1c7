#!/usr/bin/env python3
"""Boots an arm64 machine, which is emulated, with the package of arm64, and runs arm64.sh in it.

usage: arm64.py ROOT PACKAGE     ROOT is an archive of unpacked Debian packages, with a kernel; see package.sh

The last line is "N passed, N failed".
"""
import glob
import os
import re
import subprocess
import sys

from page import HERE  # finds the two below
import guest
from cpio import Archive
from report import Report

LIMIT_S = 600
# The modules of the kernel that are of use, by their folders.
MODULES = ("drivers/nvme", "crypto", "lib", "arch")
UNUSED = re.compile(r"^(boot|dev|proc|sys|usr/share|usr/src|var|etc/(?!sluice)|usr/lib/(systemd|udev|python3)|usr/lib/modules/[^/]+/kernel/(?!%s))"
                    % "|".join(MODULES))


def initramfs(tree, path):
    """Writes the files of a folder that are of use, and the script as the first process."""
    archive = Archive()
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            place = os.path.join(folder, name)
            inside = os.path.relpath(place, tree)
            if UNUSED.match(inside):
                continue
            if os.path.islink(place):
                archive.link(inside, os.readlink(place))
            elif os.path.isfile(place):
                with open(place, "rb") as file:
                    archive.file(inside, file.read(), 0o755)
    for name in ("bin", "sbin", "lib"):
        if name not in archive:
            archive.link(name, "usr/" + name)
    archive.chardev("dev/console", 5, 1)
    with open(os.path.join(HERE, "arm64.sh"), "rb") as file:
        archive.file("init", file.read(), 0o755)
    with open(path, "wb") as out:
        archive.write(out)


def boot(report, folder, archive, package):
    tree, image = os.path.join(folder, "tree"), os.path.join(folder, "initramfs")
    os.mkdir(tree)
    subprocess.run(["tar", "-x", "-C", tree, "-f", archive, "--exclude=./dev/*"], check=True)
    subprocess.run(["dpkg-deb", "-x", package, tree], check=True)
    initramfs(tree, image)
    kernel = glob.glob(tree + "/boot/vmlinuz-*")[0]
    command = ["qemu-system-aarch64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "virt", "-cpu", "cortex-a76",
               "-smp", "2", "-m", "1024", "-serial", "stdio", "-kernel", kernel, "-initrd", image, "-append", "console=ttyAMA0 quiet panic=-1"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", preexec_fn=guest.die_with_parent)
    ended = False
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    for line in output.splitlines():
        print("    | " + line)
        verb, _, rest = line.strip().partition(" ")
        name, _, why = rest.partition(": ")
        if verb in ("pass", "fail"):
            report.check(name, verb == "pass", why)
        ended = ended or line.strip() == "exit 0"
    report.check("the machine comes to its end", ended)


def main():
    guest.end_politely()
    report = Report()
    report.theme("arm64, emulated")
    report.scratch("arm64", boot, *sys.argv[1:])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
