"""exercise: does everything a function can do, as the ones in Rust and C of this name do it. The test
crates/uif/tests/languages compares what they say, byte by byte."""

import sluice_uif as uif

# Time from the order "alarm" to its answer.
ALARM_NS = 1000000


class Exercise(uif.Function):
    before = [uif.WRITE, uif.FLUSH, uif.WRITE_ZEROES]
    after = [uif.READ]
    scratch = 4096
    pool = 8 * 4096
    transforms = True

    def __init__(self, options):
        if list(options) != ["byte"]:
            raise uif.Refused("exercise has one option, byte")
        byte = int(options["byte"])
        self.table = bytes(n ^ byte for n in range(256))
        self.later = False
        self.commands = 0

    def start(self, io):
        ok = io.layers and io.layers[0][1] == 512
        io.ready(uif.SUCCESS if ok else uif.NAMESPACE_NOT_READY)

    def change(self, call):
        call.data[:] = bytes(call.data).translate(self.table)

    def ask(self, call, io, own):
        data = call.held
        if own:
            data = io.buffer(len(call.data))
            if data is None:
                return uif.finish(uif.CAPACITY_EXCEEDED)
            data.data[:] = call.data
        if not io.request(0 if own else 1, call.operation, call.offset, call.length, data, call.held, call.fua,
                          call.deallocate):
            if own:
                io.release(data)
            return uif.finish(uif.NAMESPACE_NOT_READY)
        return uif.HOLD

    def submit_write(self, call, io):
        self.change(call)
        case = call.offset // 512 % 5
        if case == 0:
            call.layer = 1
            return uif.FORWARD
        if case == 1:
            call.length //= 2
            return uif.forward_and_return(7)
        if case in (2, 3):
            return self.ask(call, io, case == 3)
        return uif.finish(uif.LBA_OUT_OF_RANGE)

    def submit(self, call, io):
        self.commands += 1
        call.cookie[0] += call.offset + 1
        if call.operation == uif.WRITE:
            return self.submit_write(call, io)
        if call.operation == uif.FLUSH:
            if self.later:
                io.answer("flushed")
            self.later = False
            io.resume(call.held, 9, uif.WRITE_FAULT)
            return uif.HOLD
        if call.operation == uif.WRITE_ZEROES:
            io.translate(call.offset, call.length, call.offset + 4096, call.fua)
            io.forget(call.offset, call.length)
            io.protect(call.offset, 512)
            io.finish(call.held)
            return uif.HOLD
        return uif.FORWARD

    def returned(self, call, io):
        if call.operation == uif.READ:
            self.change(call)
        if call.stage == 9:
            call.cookie[1] += 1
        return uif.finish(call.status)

    def done(self, token, status, buffer, io):
        if buffer:
            io.release(buffer)
        io.finish(token, status)

    def timer(self, io):
        io.answer("woken")

    def control(self, text, io):
        if text == "later":
            self.later = True
            return uif.LATER
        if text == "alarm":
            io.wake_at(io.now_ns + ALARM_NS)
            return uif.LATER
        if text == "fail":
            raise uif.Refused("no, quietly" if io.is_quiet else "no")
        if text == "long":
            return "\u20ac" * 70000
        return "%s %d" % (text, self.commands)

    def metrics(self):
        return [("commands_total", self.commands)]


uif.main(Exercise)
