"""What an author of a storage function writes."""

from . import abi

# ---- Answers: (disposition, stage, status)

FORWARD = (abi.FORWARD, 0, abi.SUCCESS)  # it goes below, and its status there is its own
HOLD = None  # the function keeps it, until io.finish or io.resume
LATER = object()  # of a control: io.answer will say it


def finish(status=abi.SUCCESS):
    """The command has its status."""
    return (abi.FINISH, 0, status)


def forward_and_return(stage):
    """It goes below, and comes back to `returned` with this stage."""
    return (abi.FORWARD_AND_RETURN, stage, abi.SUCCESS)


class Refused(Exception):
    """Raised by a function's __init__: the drive cannot have it, for this reason in words. Raised by its
    `control`: what is wrong with an order."""


class Call:
    """A command in the hands of a function."""

    __slots__ = ("operation", "fua", "deallocate", "offset", "length", "layer", "data", "status", "stage", "cookie",
                 "held")

    def __init__(self, entry, data):
        (self.held, self.operation, flags, _, self.stage, self.status, self.offset, self.length, _, _, *cookie) = entry
        self.fua = bool(flags & abi.FUA)
        self.deallocate = bool(flags & abi.MAY_DEALLOCATE)
        self.layer = 0  # which layer below it is forwarded to
        self.data = data  # the command's own buffer, a memoryview: of a write, a copy of the host's data
        self.cookie = list(cookie)  # two numbers of the function's own; here again when the command is back

    @property
    def end(self):
        return self.offset + self.length

    @property
    def flags(self):
        return (abi.FUA if self.fua else 0) | (abi.MAY_DEALLOCATE if self.deallocate else 0)


class Buffer:
    """A piece of the function's own memory; `data` is a memoryview of it."""

    __slots__ = ("first", "pages", "offset", "data")

    def __init__(self, first, pages, offset, data):
        self.first, self.pages, self.offset, self.data = first, pages, offset, data


class Function:
    """To be derived from. It is made once for each drive, with the drive's options: a dict of words."""

    before = ()  # operations that it sees before they go below
    after = ()  # and those that it sees when they are back with success
    block_size = 512  # the smallest unit of a request: 512 or 4096
    scratch = 0  # bytes of the buffer that a Write Zeroes gets
    pool = 0  # bytes for requests of its own: whole pages of 4096
    transforms = False  # what stands below is not what the host reads
    size = 0  # bytes of the layer; 0 for as many as its first layer below has

    def __init__(self, options):
        pass

    def start(self, io):
        """The layers below are there (io.layers). Commands come when it has said io.ready()."""
        io.ready()

    def submit(self, call, io):
        """A command before the layer below has seen it. Returns an answer."""
        return FORWARD

    def returned(self, call, io):
        """A command that was below, or was held and resumed."""
        return finish(call.status)

    def done(self, token, status, buffer, io):
        """A request of the function's own is done; the buffer is the one it was asked with, or None."""

    def timer(self, io):
        """The time of io.wake_at has come."""

    def control(self, text, io):
        """An operator wants something. Returns the answer in words, LATER, or raises Refused."""
        raise Refused("this function takes no orders")

    def metrics(self):
        """What it counts: pairs of a name in the manner of Prometheus and a number."""
        return ()
