"""QEMU's monitor (QMP): what is done to a machine from outside, such as pulling a network cable."""

import json
import socket

import guest


class Monitor:
    """The monitor of one guest, at a socket that QEMU makes at `path`."""

    def __init__(self, path):
        self.path = path

    def qemu_args(self):
        return ["-qmp", "unix:%s,server=on,wait=off" % self.path]

    def execute(self, command, **arguments):
        """Carries out one command on a connection of its own; returns what QEMU answers."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.path)
            lines = connection.makefile("rw")
            self._answer(lines)  # the greeting
            for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                lines.write(json.dumps(request) + "\n")
                lines.flush()
                answer = self._answer(lines)
                if "error" in answer:
                    raise guest.GuestError("QEMU's monitor: %s: %s" % (command, answer["error"].get("desc")))
        return answer["return"]

    @staticmethod
    def _answer(lines):
        """The next line that is not about something that happened meanwhile."""
        while True:
            line = lines.readline()
            if not line:
                raise guest.GuestError("QEMU's monitor closed the connection")
            message = json.loads(line)
            if "event" not in message:
                return message
