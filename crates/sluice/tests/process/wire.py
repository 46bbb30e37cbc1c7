"""A wire between two network namespaces, with the faults of a bad network.

  unshare -Urn python3 wire.py

This process is in the near namespace, a child of it in the far one; each has one end of the wire, a TUN device. The
first printed line has the numbers of both processes. Each line of standard input is an order, which is answered with
"ok":

  pass     packets arrive
  drop     packets are dropped without an error
  reorder  packets are delayed by up to 20 ms each, so that their order changes; some are lost
  down     the near end has no link
  up       the near end has a link again

The script ends with its standard input.
"""

import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

NEAR, FAR = "10.77.0.1", "10.77.0.2"
NAME = b"wire"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8916, 0x891C, 0x8922
IFF_UP = 1
MTU = 16384
DELAY_MAX_S = 0.02
LOST_OF = 200


def set_link(name, up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.unpack("16sh", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh14x", name, 0))[:18])[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", name, flags))


def open_end(address):
    """Opens the end of the wire in this namespace, with this address."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH14x", NAME, IFF_TUN | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
            place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s", NAME, place))
        fcntl.ioctl(control, SIOCSIFMTU, struct.pack("16si12x", NAME, MTU))
    set_link(b"lo", True)
    set_link(NAME, True)
    return tun


def be_far():
    """Opens the far end, sends it to the other process, and runs for as long as that process does."""
    other = socket.socket(fileno=0)
    socket.send_fds(other, [b"!"], [open_end(FAR)])
    other.recv(1)


class Wire:
    def __init__(self, near, far):
        self.to = {near: far, far: near}
        self.mode = "pass"
        self.late = []
        self.count = 0

    def take(self, end):
        """Takes the packets that arrived at one end."""
        while True:
            try:
                packet = os.read(end, MTU + 64)
            except BlockingIOError:
                return
            if self.mode == "pass":
                self.put(self.to[end], packet)
            elif self.mode == "reorder" and random.randrange(LOST_OF):
                self.count += 1
                heapq.heappush(self.late, (time.monotonic() + random.random() * DELAY_MAX_S, self.count, end, packet))

    def put(self, end, packet):
        try:
            os.write(end, packet)
        except OSError:
            pass  # no link, or no room: lost, as on any wire

    def deliver(self):
        """Delivers the delayed packets that are due. Returns the time to the next one, if there is one."""
        now = time.monotonic()
        while self.late and self.late[0][0] <= now:
            _, _, end, packet = heapq.heappop(self.late)
            self.put(self.to[end], packet)
        return self.late[0][0] - now if self.late else None

    def obey(self, order):
        if order in ("down", "up"):
            set_link(NAME, order == "up")
        else:
            self.mode, self.late = order, []


def main():
    near = open_end(NEAR)
    here, there = socket.socketpair()
    child = subprocess.Popen(["unshare", "-n", sys.executable, __file__, "far"], stdin=there)
    there.close()
    _, fds, _, _ = socket.recv_fds(here, 1, 1)
    wire = Wire(near, fds[0])
    print(os.getpid(), child.pid, flush=True)
    orders = b""
    while True:
        ready, _, _ = select.select([near, fds[0], 0], [], [], wire.deliver())
        for end in ready:
            if end != 0:
                wire.take(end)
                continue
            more = os.read(0, 4096)
            if not more:
                return
            *lines, orders = (orders + more).split(b"\n")
            for line in lines:
                wire.obey(line.decode())
                print("ok", flush=True)


if __name__ == "__main__":
    be_far() if sys.argv[1:] == ["far"] else main()
