"""Runs test programs inside of a sandbox, as its first process: a line of JSON for each run, on standard input and output.

After each run all other processes of the sandbox are ended, and its folders are emptied.
"""

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys

SWITCH = "/tmp/sluice-mutant"
NUMBER_BYTES = 4


def clean():
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass
    for folder in ("/tmp", "/dev/shm"):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def set_switch(number, places):
    with open(SWITCH, "wb") as file:
        file.write(struct.pack("=I", number) + bytes(places))
    os.chmod(SWITCH, 0o666)


def reached():
    try:
        with open(SWITCH, "rb") as file:
            return [at for at, byte in enumerate(file.read()[NUMBER_BYTES:]) if byte]
    except OSError:
        return []


def running(line):
    """The test that runs, if the harness has printed its name already: it does with one thread."""
    words = line.decode(errors="replace").split()
    return [words[1]] if len(words) > 2 and words[0] == "test" else []


def follow(child, silence_s, passed, failed):
    """Reads what the harness prints until the first failure; returns how it ended: "done", "no end" or "ended"."""
    rest = b""
    while not failed:
        ready, _, _ = select.select([child.stdout], [], [], silence_s)
        more = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
        if not more:
            ending = "no end" if not ready else "done" if child.wait() == 0 else "ended"
            if ending != "done":
                failed += running(rest)
            return ending
        *lines, rest = (rest + more).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith("test ") and text.endswith("... ok"):
                passed.append(text.split()[1])
            elif text.startswith("test ") and text.endswith("FAILED"):
                failed.append(text.split()[1])
    return "done"


def run(job):
    set_switch(job["number"], job["places"])
    passed, failed = [], []
    child = subprocess.Popen([job["program"], *job["words"]], cwd=job["folder"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             env={**os.environ, "CARGO_MANIFEST_DIR": job["folder"]})
    ending = follow(child, job["silence_s"], passed, failed)
    child.stdout.close()
    found = {"passed": passed, "failed": failed, "ending": ending, "reached": reached()}
    clean()
    return found


clean()
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
