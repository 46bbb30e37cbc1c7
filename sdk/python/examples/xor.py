#!/usr/bin/env python3
"""xor: stores every byte combined with one of the user's (options = { byte = "165" }), undone for reads."""

import sluice_uif as uif


class Xor(uif.Function):
    before = [uif.WRITE, uif.WRITE_ZEROES]
    after = [uif.READ]
    scratch = 64 << 10  # a Write Zeroes becomes writes of so many bytes
    transforms = True

    def __init__(self, options):
        byte = options.get("byte", "90")
        if not byte.isdecimal() or int(byte) > 255:
            raise uif.Refused("byte is a number from 0 to 255")
        self.table = bytes(n ^ int(byte) for n in range(256))

    def submit(self, call, io):
        if call.operation == uif.WRITE_ZEROES:
            call.cookie[0] = call.end
            return self.zero(call, call.offset)
        call.data[:] = bytes(call.data).translate(self.table)
        return uif.FORWARD

    def returned(self, call, io):
        if call.operation == uif.READ:
            call.data[:] = bytes(call.data).translate(self.table)
        elif uif.is_success(call.status) and call.end < call.cookie[0]:
            return self.zero(call, call.end)
        return uif.finish(call.status)

    def zero(self, call, offset):
        length = min(len(call.data), call.cookie[0] - offset)
        call.data[:length] = bytes(length).translate(self.table)
        call.operation, call.offset, call.length, call.deallocate = uif.WRITE, offset, length, False
        return uif.forward_and_return(1)


uif.main(Xor)
