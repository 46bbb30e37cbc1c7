#!/usr/bin/env python3
"""Firmware boots from a drive: SeaBIOS a boot sector, OVMF an application in a FAT file system of 512 and of 4096 byte
blocks. What was booted reads a text through the firmware, writes it elsewhere and says it on the serial port. Once more
with the guest's memory in huge pages, where those can be had (as root).

  test_firmware.py
"""

import argparse
import contextlib
import os
import random
import shutil
import struct
import subprocess
import sys

import guest
import sluice
from report import Report

TIMEOUT_S = 90
SIZE = 32 << 20
MEMORY = 256 << 20
HUGE_PAGE = 2 << 20
HUGE_PAGES = "/proc/sys/vm/nr_hugepages"
PIECE = 32 << 10
CLUSTER = 4096  # of the file system below
END = ["-device", "isa-debug-exit,iobase=0x501,iosize=1"]  # QEMU's exit code is twice what is written, and 1
SOURCES = os.path.join(guest.HERE, "firmware")


def build(folder, commands, result):
    """Runs compilers in `folder`; returns the bytes of what they made."""
    for command in commands:
        subprocess.run([word.format(src=SOURCES) for word in command.split()], check=True, cwd=folder)
    with open(os.path.join(folder, result), "rb") as file:
        return file.read()


def boot_sector(folder):
    return build(folder, ("as --32 -o sector.o {src}/sector.S",
                          "ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o sector sector.o"), "sector")


def application(folder):
    return build(folder, ("clang --target=x86_64-unknown-windows -ffreestanding -fno-stack-protector -mno-red-zone "
                          "-mno-stack-arg-probe -O2 -c -o app.obj {src}/app.c",
                          "ld -m i386pep --subsystem 10 -e start -o app.efi app.obj"), "app.efi")


def piece():
    """A line, and what makes 32 KiB of it."""
    words = "booted %016x\n" % random.getrandbits(64)
    return words, words.encode() + b"\0" + random.randbytes(PIECE - len(words) - 1)


def entry(name, directory, cluster, length):
    """A directory entry of FAT."""
    return struct.pack("<11sB8xHIHI", name, 0x10 if directory else 0x20, 0, 0, cluster, length)


def fat16(file, block):
    """The beginning of a FAT16 file system of SIZE bytes that has the file as EFI/BOOT/BOOTX64.EFI."""
    total, root_entries = SIZE // block, 512
    fat_blocks = -(-(SIZE // CLUSTER + 2) * 2 // block)
    boot = struct.pack("<3s8sHBHBHHBHHHII", b"\xeb\x3c\x90", b"SLUICE  ", block, CLUSTER // block, 1, 2, root_entries,
                       total if total < 65536 else 0, 0xF8, fat_blocks, 32, 2, 0, 0 if total < 65536 else total)
    boot += struct.pack("<BBBI11s8s", 0x80, 0, 0x29, 1, b"SLUICE     ", b"FAT16   ")
    boot = boot.ljust(510, b"\0") + b"\x55\xaa"
    clusters = -(-len(file) // CLUSTER)
    chain = [0xFFF8, 0xFFFF, 0xFFFF, 0xFFFF] + [number + 5 for number in range(clusters - 1)] + [0xFFFF]
    fat = struct.pack("<%dH" % len(chain), *chain).ljust(fat_blocks * block, b"\0")
    root = entry(b"EFI        ", True, 2, 0).ljust(root_entries * 32, b"\0")
    efi = entry(b".          ", True, 2, 0) + entry(b"..         ", True, 0, 0) + entry(b"BOOT       ", True, 3, 0)
    boot_folder = (entry(b".          ", True, 3, 0) + entry(b"..         ", True, 2, 0)
                   + entry(b"BOOTX64 EFI", False, 4, len(file)))
    data = efi.ljust(CLUSTER, b"\0") + boot_folder.ljust(CLUSTER, b"\0") + file
    return boot.ljust(block, b"\0") + fat * 2 + root + data


@contextlib.contextmanager
def huge_pages():
    """True while there are enough for a guest; they are given back."""
    try:
        with open(HUGE_PAGES) as file:
            before = int(file.read())
        with open(HUGE_PAGES, "w") as file:
            file.write(str(before + MEMORY // HUGE_PAGE))
    except OSError:
        yield False
        return
    try:
        with open(HUGE_PAGES) as file:
            enough = int(file.read()) >= before + MEMORY // HUGE_PAGE
        yield enough
    finally:
        with open(HUGE_PAGES, "w") as file:
            file.write(str(before))


def start(socket, more, memory=""):
    """Lets the firmware boot; returns QEMU's exit code and what came over the serial port."""
    accel = guest.acceleration()
    command = [
        guest.qemu(), "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
        "-machine", "q35,memory-backend=ram", "-m", "%dM" % (MEMORY >> 20),
        "-object", "memory-backend-memfd,id=ram,share=on,size=%d%s" % (MEMORY, memory), "-smp", "1",
        "-accel", "tcg,thread=multi" if accel == "tcg" else accel, "-serial", "stdio",
    ]
    command += guest.vfio_user(socket, 4) + END + more
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               preexec_fn=guest.die_with_parent)
    try:
        return process.wait(TIMEOUT_S), process.stdout.read().decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[0].decode(errors="replace")


def boot(report, name, block, start_of_drive, source, target, more=(), memory=""):
    """Boots a drive with these bytes at its beginning, and 32 KiB at `source` that are to be at `target` too."""
    words, data = piece()
    with guest.scratch() as folder:
        image = os.path.join(folder, "disk.img")
        with open(image, "wb") as file:
            file.write(start_of_drive)
            file.seek(source)
            file.write(data)
            file.truncate(SIZE)
        namespace = sluice.Namespace("file", "%dMiB" % (SIZE >> 20), block, image)
        with sluice.Daemon(folder, {"disk": [namespace]}) as daemon:
            code, said = start(daemon.socket("disk"), list(more), memory)
            report.check("%s: boots and reads" % name, words in said.replace("\r", ""),
                         "it said: %s" % said[-500:] if said else "it said nothing")
            report.check("%s: ends well" % name, code == 1, "QEMU's exit code is %s" % code)
            with open(image, "rb") as file:
                file.seek(target)
                report.check("%s: what it wrote is there" % name, file.read(PIECE) == data, "it is something else")
            complaints = daemon.complaints()
            report.check("%s: the daemon has no complaints" % name, not complaints, complaints)


def run(report):
    report.theme("firmware boots from a drive")
    with guest.scratch() as folder:
        sector = boot_sector(folder)
        boot(report, "SeaBIOS", 512, sector, 512, 128 * 512)
        with huge_pages() as enough:
            if enough:
                boot(report, "SeaBIOS, huge pages", 512, sector, 512, 128 * 512, memory=",hugetlb=on,hugetlbsize=2M")
            else:
                print("  no huge pages can be had here: not tried")
        ovmf = guest.run_tool(os.path.join(guest.ROOT, "scripts", "get-ovmf.sh"))
        file = application(folder)
        for block in (512, 4096):
            variables = os.path.join(folder, "vars-%d.fd" % block)
            shutil.copyfile(os.path.join(ovmf, "OVMF_VARS_4M.fd"), variables)
            flash = ["if=pflash,unit=0,format=raw,readonly=on,file=" + os.path.join(ovmf, "OVMF_CODE_4M.fd"),
                     "if=pflash,unit=1,format=raw,file=" + variables]
            more = [word for drive in flash for word in ("-drive", drive)]
            boot(report, "OVMF, %d byte blocks" % block, block, fat16(file, block), SIZE - 2 * PIECE, SIZE - PIECE, more)


def main():
    guest.end_politely()
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if sluice.missing():
        sys.exit("error: " + sluice.missing())
    report = Report()
    run(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
