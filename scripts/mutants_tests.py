"""Runs tests of a build that contains many changes, each run in a sandbox of its own.

Every test is run once without a change. That gives its time and the places that it reaches. A change is then tested by the
tests alone that reach its place.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

INSIDE = pathlib.Path(__file__).with_name("mutants_inside.py")
# Changed code may remove files and end processes. It sees all files read only but /tmp, which is a folder of its own, no other
# process and no network, and devices with mounted file systems are hidden.
SANDBOX = """
set -e
scratch=$1; shift
mount --make-rprivate /
while read -r device _; do [ ! -b "$device" ] || mount --bind /dev/null "$device" || true; done < /proc/self/mounts
mount --bind "$scratch" /tmp
while read -r _ place kind _; do
  case $place:$kind in /tmp:*|/proc*|/dev/*|*:proc) ;; *) mount -o remount,bind,ro "$(printf %b "$place")" ;; esac
done < /proc/self/mounts
mount -t tmpfs none /dev/shm
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
[ ! -e /proc/sysrq-trigger ] || mount --bind /dev/null /proc/sysrq-trigger
ip link set lo up
cd /
exec "$@"
"""
# A run in which no test ends for this many times the time of its longest test, and `patience` seconds more, does not end.
SLOWER = 5
# A failure need not be made small.
FOR_TESTS = {"RUST_BACKTRACE": "0", "PROPTEST_RNG_SEED": "7", "PROPTEST_MAX_SHRINK_ITERS": "0"}
# Sandboxes with a run at the same time.
WORKERS = 2


class Binary:
    def __init__(self, package, target, path, folder):
        self.package, self.target, self.path, self.folder = package, target, path, folder

    @property
    def key(self):
        return f"{self.package}/{self.target}"


class Sandbox:
    """Namespaces with a folder of their own, for one run at a time."""

    def __init__(self, folder, places, nice):
        self.folder, self.places, self.nice, self.child = folder, places, nice, None

    def start(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o1777)
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["nice", "-n", str(self.nice), "unshare", *user, "--mount", "--pid", "--net", "--ipc", "--fork",
                   "--kill-child", "--mount-proc", "bash", "-c", SANDBOX, "sandbox", str(self.folder),
                   sys.executable, "-I", "-S", "-c", INSIDE.read_text()]
        hidden = ("SLUICE_MUTANT", "TMPDIR", "RUSTC_WORKSPACE_WRAPPER")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env=kept | FOR_TESTS)
        if self.child.stdout.readline() != "ready\n":
            sys.exit("error: there is no sandbox")

    def run(self, binary, words, number, silence_s):
        """The names of the tests that passed and that failed, how it ended, and the places that were reached."""
        if not self.child:
            self.start()
        job = {"program": str(binary.path), "folder": str(binary.folder), "words": words, "number": number,
               "places": self.places, "silence_s": silence_s}
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if answer:
            return json.loads(answer)
        self.end()
        return {"passed": [], "failed": [], "ending": "ended", "reached": []}

    def end(self):
        if self.child:
            self.child.kill()
            self.child.wait()
            self.child.stdin.close()
            self.child.stdout.close()
            self.child = None


def alone(name):
    return ["--exact", name, "--test-threads", "1"]


def listed(binary):
    def names(*words):
        found = subprocess.run([binary.path, "--list", "--format", "terse", *words], cwd=binary.folder, check=True,
                               capture_output=True, text=True).stdout.splitlines()
        return [line.removesuffix(": test") for line in found if line.endswith(": test")]
    ignored = set(names("--ignored"))
    return [name for name in names() if name not in ignored]


class Tests:
    """All tests of the build; `base` keeps their times and places."""

    def __init__(self, binaries, stage_of, base, folder, places, nice, skip, patience):
        self.binaries, self.stage_of = {it.key: it for it in binaries}, stage_of
        self.base, self.skip, self.patience = base, skip, patience
        self.sandboxes = [Sandbox(folder / str(number), places, nice) for number in range(WORKERS)]
        self.known, self.measured = {}, set()
        if base.exists():
            for line in base.read_text().splitlines():
                it = json.loads(line)
                self.known[it["binary"], it["test"]] = it

    def keys(self, package, stage):
        """The test programs of the stage, for a change of the package."""
        return [key for key, binary in self.binaries.items() if self.stage_of(binary, package) == stage]

    def measure(self, keys):
        """Runs each test of these binaries once, unless that was done before."""
        wanted = []
        for key in sorted(set(keys) - self.measured):
            self.measured.add(key)
            for name in listed(self.binaries[key]):
                if (key, name) not in self.known and not any(word in name for word in self.skip):
                    wanted.append((key, name))
        lock = threading.Lock()

        def one(job):
            key, name = job
            for _ in range(2):
                began = time.monotonic()
                run = self.run(key, alone(name), 0, 600)
                seconds, ok = time.monotonic() - began, name in run["passed"]
                if ok:
                    break
            with lock:
                self.keep({"binary": key, "test": name, "ok": ok, "seconds": round(seconds, 3), "reached": run["reached"]})

        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(one, wanted))

    def run(self, key, words, number, silence_s):
        """Runs tests in a sandbox that is free. No more than WORKERS threads do."""
        sandbox = self.sandboxes.pop()
        try:
            return sandbox.run(self.binaries[key], words, number, silence_s)
        finally:
            self.sandboxes.append(sandbox)

    def keep(self, it):
        self.known[it["binary"], it["test"]] = it
        with self.base.open("a") as file:
            file.write(json.dumps(it) + "\n")
        if not it["ok"]:
            print(f"fails without a change: {it['binary']} {it['test']}", file=sys.stderr, flush=True)

    def reaching(self, place, keys):
        """The tests of these binaries that reach the place (all of them without a place), by binary."""
        found = {key: [] for key in keys}
        for (key, name), it in self.known.items():
            if key in found and it["ok"] and (place is None or place in it["reached"]):
                found[key].append(it)
        return {key: tests for key, tests in found.items() if tests}

    def notices(self, key, tests, number):
        """The first of these tests of a binary that fails with the change, or none."""
        left, threads = [it["test"] for it in tests], "2"
        silence_s = max(it["seconds"] for it in tests) * SLOWER + self.patience
        while left:
            words = ["--exact", *left, "--test-threads", threads]
            run = self.run(key, words, number, silence_s)
            left = [name for name in left if name not in run["passed"]]
            if run["failed"]:
                name = run["failed"][0]
                if self.fails_again(key, name, number, silence_s):
                    return name
                left.remove(name)
            elif run["ending"] == "done":
                return None
            elif len(left) == 1 or threads == "1":
                return f"{left[0] if left else key}: {'no end' if run['ending'] == 'no end' else 'the process ended'}"
            else:
                threads = "1"
        return None

    def fails_again(self, key, name, number, silence_s):
        """Whether a test that failed with a change fails with it again, alone. A test that fails by itself is no notice."""
        for _ in range(2):
            run = self.run(key, alone(name), number, silence_s)
            if name not in run["passed"]:
                return True
        print(f"failed once in three times: {name} with {number}", file=sys.stderr, flush=True)
        return False
