#!/usr/bin/env python3
"""Installs the package in a Debian with libvirt and without systemd, and carries out docs/howto/attach-to-libvirt.md and
attach-to-cloud-hypervisor.md: with the elements, arguments and commands of these pages, up to the verified writes of a guest.

usage: libvirt.py ROOT PACKAGE     as root, in a mount namespace of its own. ROOT is an archive; see package.sh

The last line is "N passed, N failed".
"""
import html
import os
import re
import shlex
import subprocess
import sys

from page import SCRIPT, Page, within  # finds the two below
import guest
from report import Report

KERNEL = "6.12"
GUEST_LIMIT_S = 300
LIMIT_S = 300
SOCKET = "/run/sluice/drives/disk/cntrl"
STAY = "/var/lib/libvirt/images/stay.qcow"
QEMU_SETTINGS = """
# These concern the place of the test: no AppArmor, no cgroups, no logging daemon, no core files.
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
max_core = 0
"""


class Tree:
    """A Debian in a folder, whose programs are executed there."""

    def __init__(self, folder, archive):
        self.folder, self.started = folder, []
        subprocess.run(["tar", "-x", "-C", folder, "-f", archive, "--exclude=./dev/*"], check=True)
        for name in ("proc", "sys", "dev"):
            subprocess.run(["mount", "--rbind", "/" + name, os.path.join(folder, name)], check=True)
        for name in ("run", "tmp"):
            subprocess.run(["mount", "-t", "tmpfs", "tree", os.path.join(folder, name)], check=True)

    def path(self, inside):
        return self.folder + inside

    def write(self, inside, text, mode="w"):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), mode) as file:
            file.write(text)

    def read(self, inside):
        try:
            with open(self.path(inside), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def run(self, *words):
        """Executes a command, and returns its exit code and its output."""
        done = subprocess.run(["chroot", self.folder, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"})
        return done.returncode, done.stdout

    def shell(self, command):
        return self.run("sh", "-c", command)

    def start(self, log, *words):
        """Starts a program, and returns its process."""
        with open(self.path(log), "ab") as out:
            process = subprocess.Popen(["chroot", self.folder, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                       preexec_fn=guest.die_with_parent)
        self.started.append(process)
        return process

    def end(self):
        for process in reversed(self.started):
            guest.stop(process, 10)


class Test:
    def __init__(self, report, tree):
        self.report, self.tree, self.daemon = report, tree, None
        self.page = Page("attach-to-libvirt.md")

    def check(self, name, result, wanted=""):
        """A command that succeeds, and prints this."""
        code, text = result
        self.report.check(name, code == 0 and wanted in text, "exit %d: %s" % (code, text[-2000:]))
        return code == 0

    def install(self, package):
        self.tree.write("/root/package/sluice_0_test.deb", b"", "wb")
        subprocess.run(["cp", package, self.tree.path("/root/package/sluice_0_test.deb")], check=True)
        install = Page("install.md").has("apt install ./sluice_*.deb").replace("apt install", "apt-get -qq -y --no-install-recommends install")
        self.check("apt installs the package without systemd", self.tree.shell("cd /root/package && " + install))
        self.check("the user of the daemon", self.tree.shell(self.page.has("usermod -a -G libvirt-qemu sluice")))
        group = self.page.block("", "[daemon]").splitlines()[1].split("#")[0].strip()
        text = self.tree.read("/etc/sluice/sluice.toml")
        self.report.check("the configuration has the line of the page", "#" + group in text, group)
        self.tree.write("/etc/sluice/sluice.toml", text.replace("#" + group, group))
        self.check("the folders of the units", self.tree.shell(
            "install -d -o sluice -g sluice /run/sluice && install -d -o sluice -g sluice -m 700 /run/sluice-holder && "
            "install -d -o sluice -g sluice -m 750 /var/lib/sluice /var/lib/sluice/images"))

    def start_daemon(self):
        user = ("setpriv", "--reuid=sluice", "--regid=sluice", "--init-groups", "--inh-caps=-all", "--bounding-set=-all")
        if self.daemon is None:
            self.tree.start("/tmp/holder.log", *user, "sluice-holder", "/run/sluice-holder/socket")
            within(LIMIT_S, lambda: os.path.exists(self.tree.path("/run/sluice-holder/socket")))
        self.daemon = self.tree.start("/tmp/daemon.log", *user, "sluice", "serve", "-c", "/etc/sluice/sluice.toml")
        return within(LIMIT_S, lambda: self.tree.run("sluice", "drive", "list")[0] == 0)

    def serve(self):
        self.report.check("holder and daemon start", self.start_daemon(), self.tree.read("/tmp/daemon.log")[-2000:])
        create = Page("attach-to-qemu.md").has("sluice drive create disk --file /srv/vm/disk.img --size 20GiB")
        create = create.replace("/srv/vm", "/var/lib/sluice/images").replace("GiB", "MiB").replace("20", "64")
        self.check("a drive", self.tree.shell(create))
        self.check("its socket is for the group", self.tree.run("stat", "-c", "%a %G", SOCKET), "660 libvirt-qemu\n")

    def cloud_hypervisor(self):
        page = Page("attach-to-cloud-hypervisor.md")
        command, _, printed = page.block("", "$ sluice").partition("\n")
        code, text = self.tree.shell(command[2:])
        self.report.check("the page of Cloud Hypervisor has the arguments", code == 0 and text == printed, text)
        machine = shlex.split(page.block("", "--kernel"))
        memory = machine[machine.index("--memory") + 1].split(",")
        arguments = shlex.split(text.splitlines()[-1])
        self.report.check("so does its command line", shlex.join(arguments) in shlex.join(machine) and "shared=on" in memory, machine)

    def domains(self, folder):
        """The machines of the page and of the example, each with what the page leaves to the reader."""
        system = "<memory unit='GiB'>1</memory><os><type arch='x86_64' machine='q35'>hvm</type></os>"
        snippet = self.page.block("xml", "<domain").replace("</name>", "</name>" + system)
        with open(os.path.join(guest.ROOT, "examples", "libvirt.xml")) as file:
            example = file.read()
        code, printed = self.tree.shell("sluice drive attach disk --print libvirt")
        arguments = re.findall("<qemu:arg.*", printed)
        for name, text in (("page", snippet), ("example", example)):
            self.report.check("the %s has the elements that are printed" % name, code == 0 and len(arguments) == 2 and
                              all(argument in text for argument in arguments), printed)
        stay = re.findall("<qemu:arg.*", self.page.block("xml", STAY))
        self.report.check("and the example those of the page", all(argument in example for argument in stay), stay)
        for name, text in (("page", snippet), ("example", example)):
            self.tree.write("/root/%s.xml" % name, text)
            self.check("libvirt's schema has the domain of the %s" % name, self.tree.run("virt-xml-validate", "/root/%s.xml" % name))
            self.check("libvirt makes a command line of it", self.tree.run(
                "virsh", "domxml-to-native", "qemu-argv", "/root/%s.xml" % name), html.unescape(arguments[1].split("'")[1]))
        return self.bootable(example, folder)

    def bootable(self, domain, folder):
        """The example with less memory, the kernel of the guest tests, and two serial ports into files."""
        machine = guest.Guest(KERNEL, SCRIPT)
        initramfs = machine._initramfs(folder)
        os.makedirs(self.tree.path("/srv/guest"))
        subprocess.run(["cp", initramfs, self.tree.path("/srv/guest/initramfs")], check=True)
        subprocess.run(["cp", os.path.join(machine.kernel_folder, "kernel"), self.tree.path("/srv/guest/kernel")], check=True)
        boot = ("<kernel>/srv/guest/kernel</kernel><initrd>/srv/guest/initramfs</initrd><cmdline>console=ttyS0 quiet loglevel=4 "
                "panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check</cmdline></os><cpu mode='maximum'/>")
        ports = "".join("<serial type='file'><source path='/srv/guest/port%d'/><target port='%d'/></serial>" % (n, n) for n in (0, 1))
        domain = domain.replace("<memory unit='GiB'>4", "<memory unit='GiB'>1").replace("</os>", boot)
        if guest.acceleration() == "tcg":
            domain = domain.replace("type='kvm'", "type='qemu'")
        return re.sub(r"<serial type='pty'/>\s*<console type='pty'/>", ports, domain)

    def answers(self):
        """Lines of the guest's second port."""
        return [line.rstrip("\r") for line in self.tree.read("/srv/guest/port1").split("\n")]

    def boot(self, domain):
        self.tree.write("/root/machine.xml", domain)
        self.check("the image of the page", self.tree.shell(self.page.has("qemu-img create -f qcow %s 1M" % STAY)))
        self.check("which QEMU may write", self.tree.shell(self.page.has("chown libvirt-qemu: %s" % STAY)))
        if not self.check("libvirt starts the machine", self.tree.run("virsh", "create", "/root/machine.xml")):
            self.report.check("QEMU", False, self.tree.shell("cat /var/log/libvirt/qemu/guest.log")[1][-3000:])
            return
        self.check("as a user of its own", self.tree.shell("ps -o user:20= -C qemu-system-x86_64 || ps -ef"), "libvirt-qemu\n")
        code, text = self.tree.shell(self.page.has("virsh dumpxml") + " guest")
        self.report.check("the element is there", code == 0 and "<qemu:arg value='-device'/>" in text, text[-1000:])
        begun = within(GUEST_LIMIT_S, lambda: any(line.startswith(("note writes", "exit")) for line in self.answers()))
        self.report.check("the guest writes", begun, self.tree.read("/srv/guest/port0")[-2000:])
        self.check("the drive is connected", self.tree.run("sluice", "drive", "list"), "connected")
        code, text = self.tree.shell("virsh save guest /srv/guest/saved")
        self.report.check("QEMU refuses to save it", code != 0 and "does not support live migration" in text, text)
        self.die()
        within(GUEST_LIMIT_S, lambda: any(line.startswith("exit") for line in self.answers()))
        for line in self.answers():
            verb, _, rest = line.partition(" ")
            if verb in ("pass", "fail"):
                name, _, why = rest.partition(": ")
                self.report.check("guest: " + name, verb == "pass", why)
        self.report.check("the guest comes to its end", "exit 0" in self.answers(), self.tree.read("/srv/guest/port0")[-2000:])
        self.check("libvirt sees its end", (0 if within(LIMIT_S, lambda: "guest" not in self.tree.run("virsh", "list")[1]) else 1, ""))

    def die(self):
        self.daemon.kill()
        self.daemon.wait()
        self.report.check("the daemon dies and starts again", self.start_daemon(), self.tree.read("/tmp/daemon.log")[-2000:])
        faults = [line for line in self.tree.read("/tmp/daemon.log").splitlines() if " WARN " in line or " ERROR " in line]
        expected = len(faults) == 1 and "the last daemon has died; continuing 1 drive" in faults[0]
        self.report.check("its log has nothing but this death", expected, faults)


def main():
    guest.end_politely()
    report = Report()
    report.theme("libvirt, with %s" % guest.acceleration())
    with guest.scratch() as folder:
        os.chmod(folder, 0o755)
        inside = os.path.join(folder, "root")
        os.mkdir(inside)
        tree = Tree(inside, sys.argv[1])
        test = Test(report, tree)
        try:
            test.install(sys.argv[2])
            test.serve()
            test.cloud_hypervisor()
            tree.write("/etc/libvirt/qemu.conf", QEMU_SETTINGS, "a")
            tree.start("/tmp/libvirt.log", "libvirtd")
            within(LIMIT_S, lambda: tree.run("virsh", "list")[0] == 0)
            test.boot(test.domains(folder))
        except guest.GuestError as error:
            report.check("the test", False, str(error))
        finally:
            tree.end()
            subprocess.run(["umount", "-R", "-l", inside + "/proc", inside + "/sys", inside + "/dev", inside + "/run", inside + "/tmp"], check=False)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
