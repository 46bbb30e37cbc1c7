"""Storage functions for Sluice, in Python: to try an idea in minutes.

    import sluice_uif as uif

    class ReadOnly(uif.Function):
        before = [uif.WRITE, uif.WRITE_ZEROES, uif.DEALLOCATE]

        def submit(self, call, io):
            return uif.finish(uif.NAMESPACE_WRITE_PROTECTED)

    uif.main(ReadOnly)

A function sees commands of a drive on their way, in a process of its own, and says what becomes of each. One
thread calls everything; what returns late makes all commands wait. Bytes count from the beginning of the
function's layer. The process is not confined as one in Rust or C is: it may do what its user may.
"""

from .abi import (
    CAPACITY_EXCEEDED, DEALLOCATE, FLUSH, INTERNAL_ERROR, INVALID_FIELD, LBA_OUT_OF_RANGE, NAMESPACE_NOT_READY,
    NAMESPACE_WRITE_PROTECTED, READ, SUCCESS, UNRECOVERED_READ_ERROR, WRITE, WRITE_FAULT, WRITE_ZEROES, is_success,
)
from .function import FORWARD, HOLD, LATER, Buffer, Call, Function, Refused, finish, forward_and_return
from .serve import main
from .session import Io

__all__ = [
    "CAPACITY_EXCEEDED", "DEALLOCATE", "FLUSH", "INTERNAL_ERROR", "INVALID_FIELD", "LBA_OUT_OF_RANGE",
    "NAMESPACE_NOT_READY", "NAMESPACE_WRITE_PROTECTED", "READ", "SUCCESS", "UNRECOVERED_READ_ERROR", "WRITE",
    "WRITE_FAULT", "WRITE_ZEROES", "is_success", "FORWARD", "HOLD", "LATER", "Buffer", "Call", "Function", "Refused",
    "finish", "forward_and_return", "Io", "main",
]
