"""The process of a function: rings, daemons, and one loop around them. docs/reference/sdk.md has the layout of the memory.

Python has no memory barriers, so the kernel issues them: membarrier(2) is a full one for the thread that calls it
(MEMBARRIER_CMD_GLOBAL_EXPEDITED, since Linux 4.16). x86 needs it only between a write and a later read, which is
once for every batch of replies and once before a sleep; other machines also between what is read first and next,
and what is written first and next. Indices are read and written through a view of 32-bit words, which moves each
as one.
"""

import argparse
import ctypes
import errno
import mmap
import os
import platform
import select
import socket
import sys
import time

from . import abi
from .function import Refused
from .session import Session

HANDSHAKE_S = 5
BACKLOG = 64
SPIN_NS = 20_000  # how long an idle process polls before it sleeps
TURNS_PER_LOOK = 256  # busy turns between two looks at the sockets
FULL_NS = 1_000_000  # when to see again if a full ring has room

_MEMBARRIER_CALL = {"x86_64": 324, "aarch64": 283, "riscv64": 283}
_GLOBAL_EXPEDITED = 1 << 1
_libc = ctypes.CDLL(None, use_errno=True)
_TOTAL_ORDER = platform.machine() == "x86_64"


def full_barrier():
    number = _MEMBARRIER_CALL.get(platform.machine())
    if number is None or _libc.syscall(number, _GLOBAL_EXPEDITED, 0, 0) != 0:
        why = os.strerror(ctypes.get_errno()) if number else "not known for a " + platform.machine()
        raise OSError(errno.ENOSYS, "there are no memory barriers: membarrier: " + why)


def barrier():
    """Between reads, or between writes, or from a read to a write."""
    if not _TOTAL_ORDER:
        full_barrier()


class Broken(Exception):
    """The daemon's memory is not what it should be."""


class Rings:
    """The function's ends of both rings, in memory that is shared with the daemon."""

    def __init__(self, fd, length):
        self.memory = memoryview(mmap.mmap(fd, length))
        magic, version, entries, _ = abi.HEADER.unpack_from(self.memory, 0)
        if (magic, version) != (abi.MAGIC, abi.VERSION) or entries > abi.ENTRIES_MAX \
                or not entries or entries & (entries - 1):
            raise Refused("the memory it brought holds no rings")
        ring_bytes = -(-entries * abi.ENTRY_BYTES // abi.PAGE_BYTES) * abi.PAGE_BYTES
        self.entries = entries
        self.submissions = abi.PAGE_SUBMISSIONS * abi.PAGE_BYTES
        self.replies = self.submissions + ring_bytes
        if length < self.replies + ring_bytes:
            raise Refused("the memory it brought holds no rings")
        self.words = self.memory.cast("I")
        self.head = self.tail = self.published = 0

    def _read(self, index):
        return self.words[(abi.PAGE_DAEMON * abi.PAGE_BYTES + index) // 4] & 0xFFFF

    def _write(self, index, value):
        self.words[(abi.PAGE_FUNCTION * abi.PAGE_BYTES + index) // 4] = value & 0xFFFF

    def waiting(self):
        """How many entries wait; shows the daemon which places are free again."""
        self._write(abi.INDEX_HEAD, self.head)
        count = (self._read(abi.INDEX_TAIL) - self.head) & 0xFFFF
        if count > self.entries:
            raise Broken
        barrier()
        return count

    def take(self):
        at = self.submissions + (self.head & (self.entries - 1)) * abi.ENTRY_BYTES
        self.head = (self.head + 1) & 0xFFFF
        return bytes(self.memory[at:at + abi.ENTRY_BYTES])

    def publish(self, said):
        """Moves what was said into the ring, as far as it fits. True if the daemon sleeps and has to be rung for."""
        room = self.entries - ((self.tail - self._read(abi.INDEX_HEAD)) & 0xFFFF)
        while said and room > 0:
            at = self.replies + (self.tail & (self.entries - 1)) * abi.ENTRY_BYTES
            self.memory[at:at + abi.ENTRY_BYTES] = said.popleft()
            self.tail, room = (self.tail + 1) & 0xFFFF, room - 1
        old, self.published = self.published, self.tail
        if old == self.tail:
            return False
        barrier()
        self._write(abi.INDEX_TAIL, self.tail)
        full_barrier()
        passed = (self.tail - self._read(abi.INDEX_EVENT) - 1) & 0xFFFF
        return passed < (self.tail - old) & 0xFFFF

    def ask(self):
        """About to sleep: asks to be rung for the next entry. After a full barrier, `waiting` is asked once more."""
        self._write(abi.INDEX_EVENT, self.head)

    def excuse(self):
        """Awake: nobody need ring."""
        self._write(abi.INDEX_EVENT, self.head - 1)


class Client:
    """One drive."""

    def __init__(self, sock, make):
        self.socket = sock
        sock.settimeout(HANDSHAKE_S)
        message, fds, _, _ = socket.recv_fds(sock, abi.HELLO.size + abi.OPTIONS_MAX, 4)
        try:
            self._take(message, fds, make)
        except Refused as why:
            sock.send(_welcome(None, str(why)))
            raise
        sock.send(_welcome(self.session.function, None))
        self.rings.excuse()

    def _take(self, message, fds, make):
        if len(message) < abi.HELLO.size or len(fds) != 4:
            raise Refused("it did not say what it wants")
        magic, version, options, rings_bytes, arena_bytes = abi.HELLO.unpack_from(message)
        if magic != abi.MAGIC:
            raise Refused("it is no daemon of Sluice's")
        if version != abi.VERSION:
            raise Refused("it speaks version %d of the rings, and this is version %d: rebuild it"
                          % (version, abi.VERSION))
        rings, arena, self.doorbell, self.bell = fds
        self.rings = Rings(rings, rings_bytes)
        memory = memoryview(mmap.mmap(arena, arena_bytes))
        os.close(rings)
        os.close(arena)
        text = message[abi.HELLO.size:abi.HELLO.size + options].decode(errors="replace")
        pairs = (pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        self.session = Session(make(dict(pairs)), memory)

    def turn(self, now_ns):
        """What the daemon has said, and what time it is. Returns how much there was."""
        count = self.rings.waiting()
        for _ in range(count):
            self.session.take(self.rings.take(), now_ns)
        self.session.expire(now_ns)
        if self.rings.publish(self.session.said):
            try:
                os.write(self.bell, (1).to_bytes(8, sys.byteorder))
            except BlockingIOError:
                pass  # a bell that is full has been rung
        return count

    def close(self):
        self.socket.close()
        os.close(self.doorbell)
        os.close(self.bell)


def _welcome(function, why):
    if function is None:
        return abi.WELCOME.pack(abi.MAGIC, abi.VERSION, 1, why.encode()[:abi.WORDS_MAX], b"", 512, 0, 0, 0, 0)
    interests = bytearray(8)
    for operation in function.before:
        interests[operation] = 1
    for operation in function.after:
        interests[operation] = 2
    return abi.WELCOME.pack(abi.MAGIC, abi.VERSION, 0, b"", bytes(interests), function.block_size, function.scratch,
                            bool(function.transforms), function.pool, function.size)


class Server:
    """Serves until the only daemon there can be is gone."""

    def __init__(self, make, door=None):
        self.make, self.door, self.clients, self.began_ns = make, door, [], time.monotonic_ns()

    def run(self):
        idle_ns = turns = 0
        while self.door or self.clients:
            now_ns, turns = time.monotonic_ns(), turns + 1
            if self._turn(now_ns - self.began_ns):
                idle_ns = 0
                if turns % TURNS_PER_LOOK == 0:
                    self._look(0)
            elif not idle_ns:
                idle_ns = now_ns
            elif now_ns - idle_ns > SPIN_NS:
                self._sleep()
                idle_ns = 0

    def _turn(self, now_ns):
        work = 0
        for client in list(self.clients):
            try:
                work += client.turn(now_ns)
            except Broken:
                self._leave(client)
        return work

    def _leave(self, client):
        self.clients.remove(client)
        client.close()

    def _sleep(self):
        for client in self.clients:
            client.rings.ask()
        full_barrier()
        if not any([client.rings.waiting() for client in self.clients]):
            self._look(self._limit_ms())
        for client in self.clients:
            client.rings.excuse()

    def _limit_ms(self):
        """How long until a function wants to be woken; None for ever."""
        now_ns = time.monotonic_ns() - self.began_ns
        limits = [client.session.alarm_ns - now_ns for client in self.clients if client.session.alarm_ns is not None]
        limits += [FULL_NS for client in self.clients if client.session.said]
        return max(0, -(-min(limits) // 1_000_000)) if limits else None

    def _look(self, limit_ms):
        """Waits for doorbells and sockets, and lets daemons in and out."""
        waits = select.poll()
        for client in self.clients:
            waits.register(client.doorbell, select.POLLIN)
            waits.register(client.socket, select.POLLIN)
        if self.door:
            waits.register(self.door, select.POLLIN)
        ready = {fd for fd, _ in waits.poll(limit_ms)}
        for client in list(self.clients):
            if client.socket.fileno() in ready:
                self._leave(client)  # a daemon says nothing after its first word: it can only be gone
            elif client.doorbell in ready:
                os.read(client.doorbell, 8)
        if self.door and self.door.fileno() in ready:
            try:
                self.clients.append(Client(self.door.accept()[0], self.make))
            except (Refused, OSError) as why:
                print("a drive is refused:", why, file=sys.stderr)


def main(make):
    """Is a function's process until the daemon is gone. `make` is the class of the function, or whatever makes one
    from a drive's options; it raises Refused if it cannot."""
    parser = argparse.ArgumentParser(description="A storage function of Sluice's. The daemon starts it, with its "
                                                 "socket as standard input.")
    parser.add_argument("--socket", metavar="PATH", help="listen there instead, for any number of drives")
    arguments = parser.parse_args()
    full_barrier()  # before anything depends on it
    if arguments.socket:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.bind(arguments.socket)
        door.listen(BACKLOG)
        return Server(make, door).run()
    server = Server(make)
    try:
        server.clients.append(Client(socket.socket(fileno=os.dup(0)), make))
    except Refused as why:
        sys.exit("error: the function does not serve: %s" % why)
    return server.run()
