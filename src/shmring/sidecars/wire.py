"""What a request and a reply look like: a fixed head, then an Arrow IPC stream.

Little-endian, 256 bytes::

    0    4  magic "SMRQ"
    4    2  version, 2
    6    2  flags: 1 error (the body is a traceback in UTF-8), 2 last piece,
            4 begun again (no answer yet: who had the request before has died),
            8 error that another reply ring would have spared: `batches` says how many slots
            that has to have, and the client may ask again with such a one, 16 of a request:
            the client keeps its columns, and an answer may leave out those that are the same
    8    4  piece: 0, 1, 2, ... of the answers to one request
    12   4  stage
    16   4  partition
    20   4  rows: the function gets so many of the request at a time; 0: all of them
    24   8  task attempt
    32   8  number of the request, counted by the client
    40  80  application id, zero-padded
    120 120 name of the client's reply ring, zero-padded
    240 4   batches: of an answer's last piece, how many times those rows a request may well
            have; 0 is 1
    244 4   zero
    248 8   of an answer: nanoseconds that the worker was at work for this piece
    256     schema, dictionaries and batch as IPC messages (nothing where there is no batch)

The head of an answer repeats that of its request. A client with a reply ring works
for one task attempt after another. One whose attempt ends with requests under way
removes that ring, so what comes late for a dead attempt finds none and is dropped.
A client that sends its requests again does so with a new reply ring, for the
same reason; it must do so where the sidecar has removed both rings at its end.

A request's schema may have metadata ``shmring.calls``: then the function is called as often as
that says, up to 256 times, each time with some of the request's columns under names of their own.
It is a list in JSON, which has for each call a list of its arguments, and for each of these a
pair of name and place, the first column's being 0: ``[[["price", 0], ["quantity", 1]], [["price",
0]]]``. Then there is ``shmring.answer``, too (an Arrow schema as an IPC message, in base64): it
has a field for each call, in order, and the answer is of that schema. A call's result is the
only column of what the function returns, as many rows as it was given, cast to the field's type.
If one call fails, so does the request; a client refuses answers of another schema or with other
numbers of rows.
With ``shmring.group`` the request is a group of rows that is worked on alone: ``1`` as it
is, ``2`` one row with two lists of structs, which are the two sides of a cogroup.

Where a client keeps a request's columns (flag 16), an answer of one piece may leave out those of
its columns that the function has passed on as they are. Its schema then has metadata
``shmring.unchanged``: a list in JSON, which has for each column of the whole answer, in order, null
if it is the batch's next one, or a pair of its name and its place in the request: ``[["id", 0],
null]``. The batch has as many rows as the request.

A request of more rows than its head says holds several batches: the function is called with
slices of so many rows, in order, the last of which may be shorter. What it returns follows each
other as the pieces of one answer, and several results of one schema may come as one. If the
function raises, its results for the slices before come first, then the error; the slices behind
are not worked on. The calls that a schema asks for are made for one slice after the other, and a
slice is answered with the results of all or not at all. A slice or a call over which the worker is
long is followed by a piece, without a body if it has nothing else to say; where requests are worked
on together, all of them have such pieces before their answers. A client sends several batches at a
time only as far as the sidecar's last answer allows: a worker names what it would have worked off
in two milliseconds, so that a function that is slow gets its next batches one by one, from
whichever worker is idle, and one that joins requests names none. A request of a group says nothing
of rows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, Self

from shmring.errors import Damaged
from shmring.names import PARKED, REPLIES, REQUESTS, is_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEAD = struct.Struct("<4sHHIiiIqQ80s120sI4xQ")
HEAD_BYTES = 256
# The name of a reply ring has "reply.", a dot, a process id of 7 digits, "-" and 12 digits, too.
_MAX_SIDECAR_NAME = 120 - 27
_MAGIC = b"SMRQ"
_VERSION = 2

FLAG_ERROR = 1
FLAG_LAST = 2
FLAG_AGAIN = 4
FLAG_LARGER = 8
FLAG_KEEPS = 16

# Kinds from 16 on belong to users of the ring.
KIND_REQUEST = 16
KIND_REPLY = 17

WORKERS_BRANCH = "workers"


def check_sidecar_name(sidecar: object) -> str:
    """Refuse what cannot name a sidecar's rings, and a name too long for the head of a request."""
    if not isinstance(sidecar, str):
        raise TypeError(f"a sidecar's name must be a str, not {sidecar!r}")
    if not sidecar or not is_name(request_ring_name(sidecar[:_MAX_SIDECAR_NAME])):
        raise ValueError(
            f"{sidecar!r} cannot name a sidecar: a name has the characters A-Z a-z 0-9 . _ -"
        )
    if len(sidecar.encode()) > _MAX_SIDECAR_NAME:
        raise ValueError(
            f"a sidecar's name has at most {_MAX_SIDECAR_NAME} bytes, because requests carry it; "
            f"{sidecar!r} has {len(sidecar.encode())}"
        )
    return sidecar


def request_ring_name(sidecar: str) -> str:
    """The ring into which all clients of a sidecar write."""
    return f"{REQUESTS}{sidecar}"


def reply_ring_name(sidecar: str, unique: str) -> str:
    """The ring of one client."""
    return f"{REPLIES}{sidecar}.{unique}"


def parked_ring_name(sidecar: str, unique: str) -> str:
    """The ring of one request that has left the sidecar's ring before it was answered."""
    return f"{PARKED}{sidecar}.{unique}"


# CHANGE: a new field of a request
class Head(NamedTuple):
    """The fixed part of a request or an answer; its fields are the words of the wire.

    A worker reads one and writes one for each request: what it does not look at stays bytes.
    """

    magic: bytes = _MAGIC
    version: int = _VERSION
    flags: int = 0
    piece: int = 0
    stage: int = 0
    partition: int = 0
    rows: int = 0
    attempt: int = 0
    number: int = 0
    application: bytes = b""
    reply: bytes = b""
    batches: int = 0
    worked: int = 0

    @classmethod
    def of(cls, number: int, reply_ring: str, *, rows: int = 0) -> Self:
        """The head of a request."""
        return cls(number=number, reply=reply_ring.encode(), rows=rows)

    @property
    def reply_ring(self) -> str:
        """The ring into which the answer goes."""
        return self.reply.rstrip(b"\0").decode("ascii")

    def answer(self, piece: int, flags: int, worked: int = 0, batches: int = 0) -> bytes:
        """The head of an answer to this request, as bytes."""
        return _HEAD.pack(
            _MAGIC,
            _VERSION,
            flags,
            piece,
            self.stage,
            self.partition,
            self.rows,
            self.attempt,
            self.number,
            self.application,
            self.reply,
            batches,
            worked,
        )

    def describe(self) -> str:
        """Whose it is, in words."""
        client = self.reply_ring.rpartition(".")[2].partition("-")[0]
        text = f"request {self.number} of process {client}"
        application = self.application.rstrip(b"\0").decode(errors="replace")
        if application:  # a task of Spark's
            text += (
                f" (partition {self.partition} of stage {self.stage}, attempt {self.attempt}, "
                f"{application})"
            )
        return text

    def pack(self) -> bytes:
        """The 256 bytes."""
        return _HEAD.pack(*self)

    @classmethod
    def unpack(cls, message: Buffer, *, ring: str) -> Self:
        """Read the head of a message; Damaged if it is none, or of another version."""
        try:
            head = cls(*_HEAD.unpack_from(message))
        except struct.error:
            nbytes = memoryview(message).nbytes
            raise Damaged(
                f'ring "{ring}": a message of {nbytes} bytes is no request or answer'
            ) from None
        if head.magic != _MAGIC or head.version != _VERSION:
            raise Damaged(
                f'ring "{ring}": a message has magic {head.magic!r} and version {head.version}, '
                f"not {_MAGIC!r} and {_VERSION}; do client and sidecar run the same shmring?"
            )
        if not head.reply.isascii():
            raise Damaged(f'ring "{ring}": a message names no ring to answer to')
        return head


assert _HEAD.size == HEAD_BYTES
