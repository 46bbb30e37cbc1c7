#!/usr/bin/env python3
"""Builds the container and starts it, with the commands of docs/howto/install.md, and attaches a guest to its drive. The daemon's
container dies under the guest's writes; that of the holder does not.

usage: container.py BASE FOLDER     as root, in a mount namespace of its own, with podman. BASE is an archive of a Debian, in place of
the image that the Containerfile names; FOLDER has the package.

The last line is "N passed, N failed".
"""
import os
import resource
import shlex
import shutil
import subprocess
import sys
import threading

from page import SCRIPT, Page, within  # finds the two below
import guest
from report import Report

LIMIT_S = 300


class Podman:
    """Podman with a storage of its own, which ends with the test. Its usual runtime, crun, needs CAP_SYS_RESOURCE."""

    def __init__(self, folder):
        self.folder = folder
        self.words = ["podman", "--runtime", "runc", "--root", folder + "/storage", "--runroot", folder + "/state",
                      "--cgroup-manager", "cgroupfs"]

    def run(self, *words):
        """Returns the exit code and the output."""
        done = subprocess.run([*self.words, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=LIMIT_S, cwd=self.folder)
        return done.returncode, done.stdout

    def start(self, command):
        """Executes a `podman run` of the page, with the folders of the test and the limits of this machine."""
        command = command.replace("-v /", "-v %s/" % self.folder)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = ["--ulimit=nofile=%d:%d" % (files, files), "--ulimit=nproc=4096:4096", "--pids-limit=0"]
        return self.run("run", "--network=host", *limits, *shlex.split(command)[2:])

    def end(self):
        self.run("rm", "--force", "--all", "--time", "5")
        self.run("system", "reset", "--force")


class Test:
    def __init__(self, report, podman, folder):
        self.report, self.podman, self.folder = report, podman, folder
        self.page = Page("install.md")
        self.daemon = self.lines("--name sluice ")
        subprocess.run(self.lines("mkdir ").replace(" /", " %s/" % folder), shell=True, check=True)

    def lines(self, word):
        """The command of the page that has a word."""
        text = self.page.block("", "podman build").replace("\\\n", " ")
        found = [line for line in text.splitlines() if word in line]
        if len(found) != 1:
            raise guest.GuestError("install.md has %d commands with %r" % (len(found), word))
        return found[0]

    def check(self, name, result, wanted=""):
        code, text = result
        self.report.check(name, code == 0 and wanted in text, "exit %d: %s" % (code, text[-2000:]))

    def build(self, base, package):
        self.check("a Debian in place of the image", self.podman.run("import", base, "docker.io/library/debian:bookworm-slim"))
        words = shlex.split(self.lines("podman build").replace("packaging/", guest.ROOT + "/packaging/").replace("target/deb", package))
        self.check("the container is built", self.podman.run("build", "--pull=never", "--isolation=chroot", "--network=host", *words[2:]))
        done = subprocess.run(["sh", "-c", self.lines("jq ")], cwd=self.folder, capture_output=True, text=True)
        self.report.check("a profile with io_uring", done.returncode == 0, done.stderr)

    def serves(self):
        return self.podman.run("exec", "sluice", "sluice", "drive", "list")[0] == 0

    def serve(self):
        self.check("the holder starts", self.podman.start(self.lines("--name sluice-holder")))
        self.check("the daemon starts", self.podman.start(self.daemon))
        self.report.check("it serves", within(LIMIT_S, self.serves), self.podman.run("logs", "sluice")[1])
        create = self.lines("drive create").replace("GiB", "MiB").replace("20", "64")
        self.check("a drive", self.podman.run(*shlex.split(create)[1:]))
        code, text = self.podman.run("logs", "sluice")
        self.report.check("the log has no error", code == 0 and "WARN" not in text and "ERROR" not in text, text)

    def die(self):
        self.check("the daemon's container dies", self.podman.run("kill", "--signal", "KILL", "sluice"))
        within(LIMIT_S, lambda: self.podman.run("rm", "sluice")[0] == 0)
        self.check("another one starts", self.podman.start(self.daemon))
        self.report.check("it serves, too", within(LIMIT_S, self.serves), self.podman.run("logs", "sluice")[1])

    def boot(self):
        dying = threading.Thread(target=self.die)

        def on_line(line):
            if line.startswith("note writes"):
                dying.start()
            return False

        machine = guest.Guest("6.12", SCRIPT, [self.folder + "/run/sluice/drives/disk/cntrl"], timeout_s=LIMIT_S, on_line=on_line)
        if not self.report.guest(machine, "container"):
            print(self.podman.run("logs", "sluice")[1])
        if dying.ident:
            dying.join()
        self.check("the daemon ends in order", self.podman.run("stop", "sluice"))


def one_version_of_cgroups():
    """Leaves one version of cgroups in this mount namespace: crun takes no machine that has both."""
    if os.path.ismount("/sys/fs/cgroup/unified"):
        subprocess.run(["umount", "-R", "-l", "/sys/fs/cgroup"], check=True)
        subprocess.run(["mount", "-t", "cgroup2", "none", "/sys/fs/cgroup"], check=True)


def main():
    guest.end_politely()
    report = Report()
    report.theme("a container, and a guest with %s" % guest.acceleration())
    one_version_of_cgroups()
    with guest.scratch() as folder:
        os.chmod(folder, 0o755)
        podman = Podman(folder)
        try:
            test = Test(report, podman, folder)
            test.build(sys.argv[1], sys.argv[2])
            test.serve()
            test.boot()
        except (guest.GuestError, subprocess.TimeoutExpired) as error:
            report.check("the test", False, str(error))
        finally:
            podman.end()
            shutil.rmtree(folder + "/storage", ignore_errors=True)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
