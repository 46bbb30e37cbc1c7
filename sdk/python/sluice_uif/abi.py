"""What daemon and function agree on, as docs/reference/sdk.md explains it. All numbers are little-endian."""

import struct

VERSION = 2
MAGIC = int.from_bytes(b"sluiceUF", "little")

PAGE_BYTES = 4096
ENTRY_BYTES = 64
ENTRIES_MAX = 32768
REQUESTS_MAX = 64
DATA_MAX = 1048576
LAYERS_MAX = 7
OPTIONS_MAX = 4096
WORDS_MAX = 192
CONTROL_BYTES = 65536

# Pages of the rings: header, indices that the daemon writes, those that the function writes, submissions, and on
# the next whole page replies.
PAGE_DAEMON, PAGE_FUNCTION, PAGE_SUBMISSIONS = 1, 2, 3
# Offsets in a page of indices, each of 32 bits of which 16 count.
INDEX_TAIL, INDEX_EVENT, INDEX_HEAD = 0, 64, 128

HEADER = struct.Struct("<QIIQ40x")  # magic, version, entries, arena_bytes
# tag, operation, flags, kind, stage, status, offset, length, data_offset, data_length, cookie
SUBMISSION = struct.Struct("<QBBBBH2xQQII2Q8x")
# tag, disposition, operation, flags, stage, status, layer, offset, length, cookie, data_offset
REPLY = struct.Struct("<QBBBBHBxQQ2QQ8x")
HELLO = struct.Struct("<QIIQQ")  # magic, version, options, rings_bytes, arena_bytes
# magic, version, refused, words, interests, block_size, scratch, transforms, pool, size
WELCOME = struct.Struct("<QII192s8sIIIIQ")

COMMAND, RETURNED, DONE, BELOW, START, CONTROL, STOP = range(7)
FINISH, FORWARD, FORWARD_AND_RETURN, REQUEST, READY, TRANSLATE = range(6)
INSERT, FORGET, PROTECT = range(3)
FUA, MAY_DEALLOCATE, QUIET, NEW = 1, 2, 4, 8

READ, WRITE, FLUSH, WRITE_ZEROES, DEALLOCATE = range(5)
OPERATIONS = 5

# A status as in a completion entry: SC in bits 7:0, SCT in 10:8, Do Not Retry in 14.
SUCCESS = 0x0000
INVALID_FIELD = 0x4002
INTERNAL_ERROR = 0x0006
NAMESPACE_WRITE_PROTECTED = 0x4020
LBA_OUT_OF_RANGE = 0x4080
CAPACITY_EXCEEDED = 0x4081
NAMESPACE_NOT_READY = 0x0082
WRITE_FAULT = 0x0280
UNRECOVERED_READ_ERROR = 0x0281


def is_success(status):
    return status & 0x7FF == 0
