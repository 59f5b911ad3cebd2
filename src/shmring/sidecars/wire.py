"""Format of a request and of an answer: a fixed head, then an Arrow IPC stream.

The head has 256 bytes, little-endian::

    0    4  magic "SMRQ"
    4    2  version, 1
    6    2  flags: 1 error (the body is a traceback in UTF-8), 2 last piece,
            4 the request is worked on again, because the worker that had it before has died; the
            message has no answer yet,
            8 error because the reply ring is too small: `batches` is the number of slots that
            the ring needs, and the client may send the request again with a larger ring,
            16 in a request: the client keeps the request's columns, and an answer may leave
            out those that are unchanged
    8    4  piece: its number among the pieces of the answer, counted from 0
    12   4  Spark's number of the stage of the task that sends the request; 0 for other clients
    16   4  Spark's number of the task's partition
    20   4  rows that the function gets at a time; 0: all rows of the request
    24   8  Spark's number of the task's attempt
    32   8  number of the request, counted by the client
    40  80  id of Spark's application, zero-padded; empty for other clients
    120 120 name of the client's reply ring, zero-padded
    240 4   batches: in the last piece of an answer, the number of batches (of `rows` rows each)
            that a client should put into one request; 0 means 1
    244 4   zero
    248 8   in an answer: nanoseconds that the worker has worked for this piece
    256     schema, dictionaries and batch as IPC messages; nothing if there is no batch

The head of an answer repeats the head of its request. A client uses one reply ring for one task
attempt after another. If an attempt ends with requests under way, the client removes its reply
ring, so that late answers for the ended attempt find no ring and are dropped. For the same reason a
client that sends requests again makes a new reply ring first. A new ring is also necessary if a
sidecar that ended has removed the request ring and the reply ring.

A request's schema may have metadata ``shmring.calls``: a list of calls, at most 256. The function
is called once for each, with some of the request's columns, renamed. The list is in JSON; each call
is a list of arguments, and each argument a pair of a name and the place of a column, counted from
0: ``[[["price", 0], ["quantity", 1]], [["price", 0]]]``. Then the metadata also has
``shmring.answer`` (an Arrow schema as an IPC message, in base64): it has a field for each call, in
order, and is the schema of the answer. For each call the function returns one column, with as
many rows as the function was given; the column is cast to the field's type. If one call fails, the
request fails; a client refuses answers of another schema or with other numbers of rows.
With metadata ``shmring.group`` the request is one group of rows, never joined with other requests.
If the value is ``1``, the batch has the group's rows. If it is ``2``, the request is a cogroup: the
batch has one row with two lists of structs, and each list has the rows of one side.

If a client keeps a request's columns (flag 16), an answer of one piece may leave out the columns
that the function has returned unchanged. The answer's schema then has metadata
``shmring.unchanged``: a list in JSON with an entry for each column of the whole answer, in order.
An entry is null for the next column of the answer's batch, or a pair of a name and the place of a
column in the request: ``[["id", 0], null]``. The batch has as many rows as the request.

A request with more rows than its head's `rows` holds several batches: the function is called with
slices of `rows` rows, in order; the last slice may be shorter. The results follow each other as
pieces of one answer, and several results of one schema may come as one piece. If the function
raises, the results of the earlier slices come first, then the error; later slices are not worked
on. If a schema asks for several calls, the worker makes all calls for the first slice, then all
calls for the next one; a slice is answered with the results of all calls or not at all. After a
slice or a call that took long the worker sends a piece, without a body if there is no result yet;
if requests are worked on together, each of them gets such pieces before its answer. A client puts
as many batches into a request as the sidecar's last answer allows: a worker allows the number that
it would work off in two milliseconds, so that a slow function gets its next batches one by one, and
any idle worker can take them. A worker that joins requests allows one batch only. In a request of
a group, `rows` is 0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, Self

from shmring.errors import Damaged
from shmring.ring.names import PARKED, REPLIES, REQUESTS, is_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEAD = struct.Struct("<4sHHIiiIqQ80s120sI4xQ")
HEAD_BYTES = 256
# A head has 120 bytes for the name of a reply ring: "reply.", the sidecar's name, a dot, a process
# id of 7 digits, "-", and 12 digits.
_MAX_SIDECAR_NAME = 120 - 27
_MAGIC = b"SMRQ"
_VERSION = 1

FLAG_ERROR = 1
FLAG_LAST = 2
FLAG_AGAIN = 4
FLAG_LARGER = 8
FLAG_KEEPS = 16

# Kinds of the messages in a sidecar's rings. Kinds below 16 belong to the rings' own protocol.
KIND_REQUEST = 16
KIND_REPLY = 17

WORKERS_BRANCH = "workers"


def check_sidecar_name(sidecar: object) -> str:
    """Return a sidecar's name; raise an error if it cannot name rings, or is too long."""
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
    """Return the name of the ring into which all clients of a sidecar write."""
    return f"{REQUESTS}{sidecar}"


def reply_ring_name(sidecar: str, unique: str) -> str:
    return f"{REPLIES}{sidecar}.{unique}"


def parked_ring_name(sidecar: str, unique: str) -> str:
    """Return the name of the ring of one request that has moved out of the sidecar's ring."""
    return f"{PARKED}{sidecar}.{unique}"


# CHANGE: edit this for a new field of a request
class Head(NamedTuple):
    """The fixed part of a request or an answer; the top of this file describes each field.

    Names are kept as bytes: to decode and encode them for each request would cost a worker time.
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
        return cls(number=number, reply=reply_ring.encode(), rows=rows)

    @property
    def reply_ring(self) -> str:
        """Name of the ring into which the answer goes."""
        return self.reply.rstrip(b"\0").decode("ascii")

    def answer(self, piece: int, flags: int, worked: int = 0, batches: int = 0) -> bytes:
        """Return the head of an answer to this request, as bytes."""
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
        """Return the request's number and its sender, in words."""
        client = self.reply_ring.rpartition(".")[2].partition("-")[0]
        text = f"request {self.number} of process {client}"
        application = self.application.rstrip(b"\0").decode(errors="replace")
        if application:  # the request comes from a task of Spark
            text += (
                f" (partition {self.partition} of stage {self.stage}, attempt {self.attempt}, "
                f"{application})"
            )
        return text

    def pack(self) -> bytes:
        return _HEAD.pack(*self)

    @classmethod
    def unpack(cls, message: Buffer, *, ring: str) -> Self:
        """Read the head of a message; raise Damaged if it has none, or one of another version."""
        try:
            head = cls(*_HEAD.unpack_from(message))
        except struct.error:
            nbytes = memoryview(message).nbytes
            raise Damaged(
                f'ring "{ring}": a message of {nbytes} bytes is no request or answer; '
                "do client and sidecar run the same shmring?"
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
