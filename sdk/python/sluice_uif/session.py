"""A function at work: entries of the daemon's in, replies out. No ring, no process: those are in serve.py."""

from collections import deque

from . import abi
from .function import HOLD, LATER, Buffer, Call, Refused

_TAG, _OPERATION, _FLAGS, _KIND, _STAGE, _STATUS, _OFFSET, _LENGTH, _AT, _BYTES = range(10)


class Pool:
    """The pages at the end of the arena. The lowest that fit are taken."""

    def __init__(self, memory, at):
        self.memory, self.at = memory, at
        self.taken = [False] * ((len(memory) - at) // abi.PAGE_BYTES)

    def take(self, length):
        pages, first = -(-length // abi.PAGE_BYTES), 0
        while first + pages <= len(self.taken):
            blocked = [page for page in range(first, first + pages) if self.taken[page]]
            if not blocked:
                self.taken[first:first + pages] = [True] * pages
                offset = self.at + first * abi.PAGE_BYTES
                return Buffer(first, pages, offset, self.memory[offset:offset + length])
            first = blocked[-1] + 1
        return None

    def give(self, buffer):
        self.taken[buffer.first:buffer.first + buffer.pages] = [False] * buffer.pages


class Session:
    """A function and what it has under way. `memory` is a memoryview of the arena."""

    def __init__(self, function, memory):
        self.function, self.memory = function, memory
        self.pool_at = len(memory) - min(function.pool, len(memory))
        self.pool = Pool(memory, self.pool_at)
        self.said = deque()  # replies, packed
        self.now_ns, self.alarm_ns = 0, None
        self.layers = []
        self.held, self.shown, self.resumed = {}, None, deque()
        self.requests = [None] * abi.REQUESTS_MAX
        self.stopping = self.quiet = False
        self.asked = self.answer = None
        self.io = Io(self)

    def take(self, entry, now_ns):
        """Works on an entry, 64 bytes."""
        self.now_ns = now_ns
        entry = abi.SUBMISSION.unpack(entry)
        work = self._WORK.get(entry[_KIND])
        if work:
            work(self, entry)
        self._settle()

    def expire(self, now_ns):
        """Looks at the clock."""
        self.now_ns = now_ns
        if self.alarm_ns is not None and now_ns >= self.alarm_ns:
            self.alarm_ns = None
            self.function.timer(self.io)
            self._settle()

    def say(self, disposition, tag=0, operation=0, flags=0, stage=0, status=0, layer=0, offset=0, length=0,
            cookie=(0, 0), data_offset=0):
        self.said.append(abi.REPLY.pack(tag, disposition, operation, flags, stage, status, layer, offset, length,
                                        *cookie, data_offset))

    def bytes(self, at, length, end):
        """Memory of the arena; None if it does not lie before `end`."""
        return self.memory[at:at + length] if at + length <= end else None

    def _show(self, entry):
        data = self.bytes(entry[_AT], entry[_BYTES], self.pool_at)
        if data is None or entry[_OPERATION] >= abi.OPERATIONS:
            return self._finish(entry, abi.INTERNAL_ERROR)
        call = Call(entry, data)
        self.shown = entry
        see = self.function.submit if entry[_KIND] == abi.COMMAND else self.function.returned
        answer = see(call, self.io)
        self.shown = None
        if answer is HOLD:
            self.held[entry[_TAG]] = (entry[_TAG], call.operation, call.flags, 0, 0, 0, call.offset, call.length,
                                      entry[_AT], entry[_BYTES], *call.cookie)
            return None
        disposition, stage, status = answer
        return self.say(disposition, entry[_TAG], call.operation, call.flags, stage, status, call.layer, call.offset,
                        call.length, call.cookie)

    def _finish(self, entry, status):
        self.say(abi.FINISH, entry[_TAG], entry[_OPERATION], entry[_FLAGS], status=status, offset=entry[_OFFSET],
                 length=entry[_LENGTH])

    def _done(self, entry):
        tag = entry[_TAG]
        if tag < abi.REQUESTS_MAX and self.requests[tag]:
            token, buffer = self.requests[tag]
            self.requests[tag] = None
            self.function.done(token, entry[_STATUS], buffer, self.io)

    def _below(self, entry):
        number = entry[_STAGE]
        if number < abi.LAYERS_MAX:
            self.layers += [(0, 0)] * (number + 1 - len(self.layers))
            self.layers[number] = (entry[_OFFSET], entry[_LENGTH] & 0xFFFFFFFF)

    def _start(self, _):
        self.function.start(self.io)

    def _stop(self, _):
        self.stopping = True

    def _control(self, entry):
        text = bytes(self.bytes(entry[_AT], entry[_BYTES], len(self.memory)) or b"").decode(errors="replace")
        if text == "metrics":
            return self._tell(entry, True, "".join("%s %d\n" % pair for pair in self.function.metrics()))
        if self.asked:
            return self._tell(entry, False, "it is still at work on the last order")
        self.asked, self.answer = entry, None
        self.quiet = bool(entry[_FLAGS] & abi.QUIET)
        try:
            words = self.function.control(text, self.io)
            if words is not LATER:
                self.answer = (True, words)
        except Refused as why:
            self.answer = (False, str(why))
        return None

    def _tell(self, entry, ok, words):
        words = words.encode()
        if len(words) > abi.CONTROL_BYTES:
            words = words[:abi.CONTROL_BYTES].decode(errors="ignore").encode()
        memory = self.bytes(entry[_AT], len(words), len(self.memory))
        if memory is None:
            words = b""
        else:
            memory[:] = words
        self.say(abi.FINISH, entry[_TAG], status=abi.SUCCESS if ok else abi.INVALID_FIELD, length=len(words))

    def _settle(self):
        while self.resumed:
            held, stage, status = self.resumed.popleft()
            entry = self.held.pop(held, None)
            if entry is None:
                continue
            if stage is None:
                self._finish(entry, status)
            else:
                self._show(entry[:_KIND] + (abi.RETURNED, stage, status) + entry[_OFFSET:])
        if self.answer and self.asked:
            entry, self.asked, self.quiet = self.asked, None, False
            self._tell(entry, *self.answer)
        self.answer = None

    _WORK = {abi.COMMAND: _show, abi.RETURNED: _show, abi.DONE: _done, abi.BELOW: _below, abi.START: _start,
             abi.CONTROL: _control, abi.STOP: _stop}


class Io:
    """What a function can do besides answering, while one of its methods runs."""

    def __init__(self, session):
        self._session = session

    @property
    def layers(self):
        """The layers below: pairs of a size and a block size, bytes."""
        return self._session.layers

    @property
    def now_ns(self):
        """Nanoseconds of a clock that never goes back."""
        return self._session.now_ns

    @property
    def is_quiet(self):
        """An operator's order found the drive quiet: no command is in flight until it is answered."""
        return self._session.quiet

    def wake_at(self, now_ns):
        """Calls `timer` at this time, or soon after; None for never."""
        self._session.alarm_ns = now_ns

    def ready(self, status=abi.SUCCESS):
        """It takes commands from now on; or all commands fail, for this reason."""
        self._session.say(abi.READY, status=status)

    def buffer(self, length):
        """Memory for a request; None if there is no such piece now."""
        return self._session.pool.take(length)

    def release(self, buffer):
        self._session.pool.give(buffer)

    @property
    def has_room(self):
        """True if a request would be sent now."""
        return not self._session.stopping and None in self._session.requests

    def request(self, layer, operation, offset, length, data=None, token=0, fua=False, deallocate=False):
        """Asks a layer below for something; `done` has the answer. Data is a Buffer, or the `held` of a command
        that it holds or looks at, or a pair of that and a byte to begin at. False if it cannot be asked now."""
        session, has_data = self._session, operation in (abi.READ, abi.WRITE)
        at, room = self._place(data)
        if not self.has_room or has_data != (data is not None) or has_data and not 0 <= length <= room:
            return False
        tag = session.requests.index(None)
        session.requests[tag] = (token, data if isinstance(data, Buffer) else None)
        flags = (abi.FUA if fua else 0) | (abi.MAY_DEALLOCATE if deallocate else 0)
        session.say(abi.REQUEST, tag, operation, flags, layer=layer, offset=offset, length=length, data_offset=at)
        return True

    def _place(self, data):
        """Where data is in the arena, and how much there is."""
        if data is None:
            return 0, 0
        if isinstance(data, Buffer):
            return data.offset, len(data.data)
        held, start = data if isinstance(data, tuple) else (data, 0)
        shown = self._session.shown
        entry = shown if shown and shown[_TAG] == held else self._session.held.get(held)
        return (entry[_AT] + start, entry[_BYTES] - start) if entry else (0, -1)

    def finish(self, held, status=abi.SUCCESS):
        """A command that was held is finished, as soon as the present method is over."""
        self._session.resumed.append((held, None, status))

    def resume(self, held, stage, status=abi.SUCCESS):
        """A command that was held comes to `returned`, likewise."""
        self._session.resumed.append((held, stage, status))

    def translate(self, start, length, to, writable):
        """For the drive's classifier: these bytes are at `to`, and writes may go there unasked, or not."""
        self._session.say(abi.TRANSLATE, operation=abi.INSERT, offset=start, length=length, cookie=(to, int(writable)))

    def forget(self, start, length):
        """Nothing is known of these any more."""
        self._session.say(abi.TRANSLATE, operation=abi.FORGET, offset=start, length=length)

    def protect(self, start, length):
        """Writes to these ask again."""
        self._session.say(abi.TRANSLATE, operation=abi.PROTECT, offset=start, length=length)

    def answer(self, words, ok=True):
        """The answer to a control that was to come LATER."""
        self._session.answer = (ok, words)
