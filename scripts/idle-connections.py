#!/usr/bin/env python3
"""What connections of NVMe/TCP hosts cost that nobody uses: processor time and memory of the daemon.

  idle-connections.py [--hosts 100] [--queues 9] [--keep-alive 120,15] [--seconds 30] [--depth 32] [--sluice BINARY]

A daemon of its own with a drive for each host; each host has an admin queue and so many I/O queues, a connection each.
Over every I/O queue some reads and writes go first, as deep as --depth says and one of 128 KiB, so that what is measured
is a connection that was used and not one that is new. Then the hosts only keep themselves alive, and the daemon is watched.

Memory is the daemon's own (Pss) beyond what it had with the drives and without the hosts, and its page tables; processor
time is that of all of its threads. Nothing but Python is needed.
"""

import argparse
import os
import pathlib
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

IC_REQ, IC_RESP, COMMAND, RESPONSE, DATA_OUT, DATA_IN, R2T = 0, 1, 4, 5, 6, 7, 9
FABRICS, KEEP_ALIVE, WRITE, READ = 0x7F, 0x18, 0x01, 0x02
CONNECT, PROPERTY_SET, PROPERTY_GET = 1, 0, 4
CC, CSTS, CC_ENABLE = 0x14, 0x1C, 1 | 6 << 16 | 4 << 20
BLOCK = 512
SETTLE_S = 5  # for what a daemon does when somebody has fallen silent
HOSTNQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-%012d"


class Link:
    """One connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(struct.pack("<BBBBIHBBI", IC_REQ, 0, 128, 0, 128, 0, 0, 0, 0).ljust(128, b"\0"))
        assert self.receive()[0] == IC_RESP
        self.cid = 0

    def exactly(self, length):
        data = b""
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                sys.exit("the daemon ended a connection")
            data += piece
        return data

    def receive(self):
        """A PDU's type and all of it."""
        header = self.exactly(8)
        return header[0], header + self.exactly(struct.unpack("<I", header[4:])[0] - 8)

    def capsule(self, opcode, nsid=0, length=0, words=b"", data=b""):
        """A command, with its data in the capsule or apart."""
        self.cid = (self.cid + 1) % 0x8000
        kind = 0x01 if data else 0x5A
        entry = struct.pack("<BBHI16xQI3xB", opcode, 0x40, self.cid, nsid, 0, len(data) or length, kind) + words.ljust(24, b"\0")
        return struct.pack("<BBBBI", COMMAND, 0, 72, 72 if data else 0, 72 + len(data)) + entry + data

    def response(self):
        """The next response's dword 0; data that come before it are passed by."""
        while True:
            kind, pdu = self.receive()
            if kind == RESPONSE:
                status = struct.unpack("<H", pdu[22:24])[0] >> 1
                assert status == 0, "status %#x" % status
                return struct.unpack("<I", pdu[8:12])[0]
            assert kind == DATA_IN, "PDU type %d" % kind

    def command(self, *arguments, **more):
        self.socket.sendall(self.capsule(*arguments, **more))
        return self.response()

    def connect(self, qid, entries, cntlid, subnqn, hostnqn, keep_alive_ms):
        data = hostnqn.encode()[-16:] + struct.pack("<H", cntlid)
        data = data.ljust(256, b"\0") + subnqn.encode().ljust(256, b"\0") + hostnqn.encode().ljust(256, b"\0")
        words = struct.pack("<HHHBxI", 0, qid, entries - 1, 0, keep_alive_ms)
        return self.command(FABRICS, CONNECT, words=words, data=data.ljust(1024, b"\0")) & 0xFFFF

    def enable(self):
        self.command(FABRICS, PROPERTY_SET, words=struct.pack("<IIQ", 0, CC, CC_ENABLE))
        while not self.command(FABRICS, PROPERTY_GET, words=struct.pack("<IIQ", 0, CSTS, 0)) & 1:
            time.sleep(0.01)

    def use(self, depth):
        """Writes and reads, all of a kind at once, and one that is too large for a capsule's own buffer."""
        words = lambda at, blocks: struct.pack("<QI", at, blocks - 1)
        each = [self.capsule(WRITE, 1, words=words(n * 8, 8), data=bytes(4096)) for n in range(depth)]
        self.socket.sendall(b"".join(each))
        [self.response() for _ in range(depth)]
        self.socket.sendall(b"".join(self.capsule(READ, 1, 4096, words(n * 8, 8)) for n in range(depth)))
        [self.response() for _ in range(depth)]
        self.command(READ, 1, 128 << 10, words(0, 256))


class Host:
    def __init__(self, number, port, arguments, keep_alive_ms):
        name, nqn = HOSTNQN % number, "nqn.2026-11.example.sluice:idle-%d" % number
        self.admin = Link(port)
        cntlid = self.admin.connect(0, 32, 0xFFFF, nqn, name, keep_alive_ms)
        self.admin.enable()
        self.io = []
        for qid in range(1, arguments.queues + 1):
            link = Link(port)
            link.connect(qid, 128, cntlid, nqn, name, 0)
            link.use(arguments.depth)
            self.io.append(link)

    def close(self):
        [link.socket.close() for link in self.io + [self.admin]]


class Daemon:
    def __init__(self, binary, hosts):
        self.folder = tempfile.mkdtemp(prefix="sluice-idle-")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        lines = ["[daemon]", 'api = "api.sock"', 'state = "state"', 'sockets = "drives"']
        lines += ["[tcp]", 'listen = ["127.0.0.1:%d"]' % self.port]
        for number in range(hosts):
            lines += ["[[drive]]", 'name = "idle-%d"' % number, "[drive.tcp]", 'nqn = "nqn.2026-11.example.sluice:idle-%d"' % number]
            lines += ["[[drive.namespace]]", 'target = "null"', 'size = "1GiB"']
        config = os.path.join(self.folder, "sluice.toml")
        pathlib.Path(config).write_text("\n".join(lines))
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.process = subprocess.Popen([binary, "serve", "-c", config], stderr=self.log, stdout=self.log)
        self.pid = self.process.pid
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(pathlib.Path(self.log.name).read_text())
                time.sleep(0.05)

    def memory(self):
        """Bytes, and those of page tables."""
        read = lambda name: pathlib.Path("/proc/%d/%s" % (self.pid, name)).read_text().splitlines()
        kib = lambda lines, key: sum(int(line.split()[1]) for line in lines if line.startswith(key))
        return kib(read("smaps_rollup"), "Pss:") << 10, kib(read("status"), "VmPTE:") << 10

    def cpu_s(self):
        words = pathlib.Path("/proc/%d/stat" % self.pid).read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder)


def watch(daemon, hosts, keep_alive_s, seconds):
    """Percent of a processor while the hosts do nothing but live."""
    settled, period = time.monotonic() + SETTLE_S, keep_alive_s / 2
    # Each at its own time, as hosts that have come one after the other.
    due = [(time.monotonic() + period * n / len(hosts), host) for n, host in enumerate(hosts)]
    before = None
    while True:
        now = time.monotonic()
        if before is None and now >= settled:
            before, began = daemon.cpu_s(), now
        if before is not None and now >= began + seconds:
            return (daemon.cpu_s() - before) / (now - began) * 100
        when, host = due[0]
        if when <= now:
            host.admin.command(KEEP_ALIVE)
            due = due[1:] + [(when + period, host)]
        time.sleep(max(0, min(due[0][0] - time.monotonic(), 0.2)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--queues", type=int, default=9, help="I/O queues of each host")
    parser.add_argument("--keep-alive", default="120,15", help="seconds, several with commas")
    parser.add_argument("--seconds", type=int, default=30, help="how long the daemon is watched")
    parser.add_argument("--depth", type=int, default=32, help="commands at once, before a queue is idle")
    parser.add_argument("--sluice", default=os.environ.get("SLUICE", str(ROOT / "target/release/sluice")))
    arguments = parser.parse_args()
    connections = arguments.hosts * (arguments.queues + 1)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print("%d connections: %d hosts with %d I/O queues each; used %d deep, then idle" %
          (connections, arguments.hosts, arguments.queues, arguments.depth))
    print("%-12s %12s %22s %22s" % ("KEEP-ALIVE", "PROCESSOR", "MEMORY/CONNECTION", "PAGE TABLES/CONNECTION"))
    for keep_alive_s in map(int, arguments.keep_alive.split(",")):
        daemon = Daemon(arguments.sluice, arguments.hosts)
        time.sleep(1)
        before = daemon.memory()
        hosts = [Host(number, daemon.port, arguments, keep_alive_s * 1000) for number in range(arguments.hosts)]
        percent = watch(daemon, hosts, keep_alive_s, arguments.seconds)
        own, tables = ((after - then) / connections / 1024 for after, then in zip(daemon.memory(), before))
        print("%-12s %10.2f %% %18.1f KiB %18.1f KiB" % ("%d s" % keep_alive_s, percent, own, tables), flush=True)
        [host.close() for host in hosts]
        daemon.stop()


main()
