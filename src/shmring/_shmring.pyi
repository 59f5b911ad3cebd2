"""The core for Python. Docstrings are in the extension: ``help(shmring.Producer)``."""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import EllipsisType, TracebackType
from typing import NoReturn, Protocol, Self, TypedDict, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

VERSION: str
# The others of CLOCK_, WAIT_ and FULL_ are asked for by the names in choices.py.
JOURNAL_BRANCH: str
SLOT_BYTES: int
MAX_PARTICIPANTS: int
READ_ONLY: int
FOREIGN_OWNER: int
UNAVAILABLE: int
CONTENDED: int
KIND_END: int
WAIT_FUTEX: int
KIND_ARROW_BATCH: int
KIND_ARROW_STREAM: int
LATEST: int
EARLIEST: int
AT_SEQUENCE: int

class RingDict(TypedDict):
    slots: int
    participants: int
    layout_major: int
    layout_minor: int
    single_producer: bool
    scattered: bool
    checksum: bool
    clock: int
    file_bytes: int
    first_sequence: int
    created_ns: int
    uuid: bytes
    owner_uid: int
    mode: int
    schema: bytes | None

class BranchDict(TypedDict):
    id: int
    name: str
    exclusive: bool
    ephemeral: bool
    drop_oldest: bool
    upstream: int
    position: int
    released: int
    ends: int
    consumers: int
    orphans: int

class HolderDict(TypedDict):
    kind: int
    branch: str | None
    name: str | None
    pid: int | None
    alive: bool
    sequence: int
    slots: int
    age_s: float | None
    words: str

class ParticipantDict(TypedDict):
    seat: int
    state: int
    role: int
    branch: int
    pid: int
    alive: bool
    joined_ns: int
    name: str
    claim: int | None
    hold: int | None
    messages: int
    bytes: int
    full_waits: int
    empty_waits: int
    contended: int
    recovered: int
    overrun: int
    dropped: int

def path_of(name: str, /) -> str: ...
def make(
    path: str | os.PathLike[str],
    label: str,
    slots: int,
    participants: int,
    single_producer: bool,
    scattered: bool,
    checksum: bool,
    prefault: bool,
    lock_memory: bool,
    huge_pages: bool,
    clock: int,
    mode: int,
    schema: bytes | None,
    first_sequence: int,
    temporary: bool,
) -> Ring: ...
def attach(path: str | os.PathLike[str], label: str, flags: int = 0) -> Ring: ...
def unlink(
    path: str | os.PathLike[str], uuid: bytes | None, remove: Callable[[], object] | None, /
) -> None: ...
def reap(path: str | os.PathLike[str], /) -> bool: ...
def reapable(path: str | os.PathLike[str], /) -> bool: ...
def crc32c(data: Buffer, crc: int = 0, /) -> int: ...
def slots_for(nbytes: int, align: bool = False, /) -> int: ...

# --- waiting for several, and event loops: waiting.py, event_loop.py

@final
class Bell:
    @property
    def rung(self) -> int: ...
    def ring(self) -> None: ...

_Handle = TypeVar("_Handle", bound=Consumer | Producer)

def wait_any(
    waits: list[tuple[_Handle, int]],
    timeout: float | None,
    strategy: int,
    bell: Bell | None,
    rung: int,
    /,
) -> list[_Handle]: ...
def take_now(consumer: Consumer, ends: int | None, /) -> bytes | EllipsisType | None: ...
def ends_of(consumer: Consumer, /) -> int: ...
def push_now(
    producer: Producer, data: Buffer, kind: int, align: int | None, /
) -> int | EllipsisType | None: ...
def decline(handle: Consumer | Producer, /) -> None: ...
def give_up(handle: Consumer | Producer, timeout: float | None, /) -> NoReturn: ...
def should_try(handle: Consumer | Producer, /) -> bool: ...
def has_tried(handle: Consumer | Producer, found: bool, /) -> None: ...

class ArrowArray(Protocol):
    """Anything with the Arrow C data interface."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...

class ArrowSchema(Protocol):
    def __arrow_c_schema__(self) -> object: ...

@final
class ArrowLayout: ...

def arrow_layout(schema: ArrowSchema, /) -> ArrowLayout | None: ...
def push_batch(
    producer: Producer,
    layout: ArrowLayout,
    head: Buffer,
    kind: int,
    limit: int,
    data: ArrowArray,
    known: bool,
    timeout: float | None,
    /,
) -> int | None: ...

_Batch = TypeVar("_Batch")
_Schema = TypeVar("_Schema")

def map_batch(
    lease: Lease,
    layout: ArrowLayout,
    skip: int,
    head: Buffer,
    copy: bool,
    every_offset: bool,
    import_batch: Callable[[int, _Schema], _Batch],
    schema: _Schema,
    /,
) -> _Batch | None: ...

# Items of the durable queues, many at a time: durable/base/items.py.
Rows = Iterable[Buffer] | Buffer | ArrowArray

def pack(items: Rows, /) -> tuple[list[bytes], bytes]: ...
def places_of(table: Buffer, offset: int, /) -> bytearray: ...
def runs_of(places: Buffer, begin: int, end: int, /) -> list[tuple[int, int, bytes]]: ...
def reverse_places(places: Buffer, /) -> bytearray: ...
def unpack(
    into: list[bytes],
    block: bytes,
    start: int,
    places: Buffer,
    begin: int,
    end: int,
    /,
) -> int: ...
def unpack_one(block: bytes, start: int, places: Buffer, index: int, /) -> bytes | None: ...
def stack_nodes(
    places: Buffer,
    begin: int,
    end: int,
    position: int,
    below: int,
    salt: int,
    backwards: bool,
    /,
) -> bytes: ...
def stack_walk(
    block: bytes, start: int, link: int, salt: int, adjacent: bool, /
) -> tuple[bytearray, int]: ...

@final
class Ring:
    @property
    def claimed(self) -> int: ...
    @property
    def floor(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def producer(self, name: str | None, when_full: int, wait: int, /) -> Producer: ...
    def join(
        self,
        branch: str,
        name: str | None,
        start: int,
        sequence: int,
        exclusive: bool,
        ephemeral: bool,
        drop_oldest: bool,
        upstream: int,
        wait: int,
    ) -> Consumer: ...
    def subscribe(
        self,
        branch: str,
        start: int,
        sequence: int,
        exclusive: bool,
        drop_oldest: bool,
        upstream: int,
    ) -> int: ...
    def unsubscribe(self, branch: str, /) -> None: ...
    def follow(self, id: int, upstream: int, /) -> None: ...
    def unfollow(self, id: int, upstream: int, /) -> None: ...
    def find_branch(self, branch: str, /) -> int: ...
    def recover(self) -> int: ...
    def info(self) -> RingDict: ...
    def branches(self) -> list[BranchDict]: ...
    def participants(self) -> list[ParticipantDict]: ...
    def holder(self) -> HolderDict | None: ...
    def rows(
        self, first: int, end: int, capacity: int, /
    ) -> list[tuple[int, int, int, int, int, int, bytes]]: ...
    def close(self) -> None: ...

class _Closing:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Producer(_Closing):
    @property
    def closed(self) -> bool: ...
    def push(
        self,
        data: Buffer,
        /,
        *,
        timeout: float | None = ...,
        kind: int = 0,
        durable: bool = False,
        align: int | None = None,
    ) -> int: ...
    def push_many(
        self,
        rows: Buffer | ArrowArray | list[Buffer] | list[bytes] | tuple[Buffer, ...],
        /,
        *,
        timeout: float | None = ...,
        durable: bool = False,
    ) -> int: ...
    def wait_durable(self, message_id: int, /, *, timeout: float | None = None) -> None: ...
    def push_end(self, *, timeout: float | None = ...) -> int: ...
    # in event_loop.py
    async def put(
        self,
        data: Buffer,
        /,
        *,
        timeout: float | None = None,
        kind: int = 0,
        align: int | None = None,
    ) -> int: ...
    async def put_end(self, *, timeout: float | None = None) -> int: ...
    def claim(
        self, nbytes: int, /, *, timeout: float | None = ..., align: int | None = None
    ) -> Claim: ...
    def next(self, count: int = 1, /) -> int: ...
    def done(self, last: int, length: int = 300, /) -> None: ...
    def abort(self) -> None: ...
    def available(self) -> int: ...
    def slot(self, sequence: int, /) -> memoryview: ...
    def close(self) -> None: ...

@final
class Claim(_Closing):
    @property
    def buffer(self) -> memoryview: ...
    @property
    def message_id(self) -> int: ...
    def commit(self, nbytes: int | None = None, /, *, kind: int = 0) -> None: ...
    def commit_many(self, lengths: Iterable[int], /) -> None: ...
    def abort(self) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Consumer(_Closing):
    @property
    def branch(self) -> str: ...
    @property
    def branch_id(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def lag(self) -> int: ...
    @property
    def hold(self) -> int | None: ...
    end_markers: bool
    @property
    def closed(self) -> bool: ...
    def pop(self, *, timeout: float | None = None) -> bytes: ...
    def lease(self, *, timeout: float | None = None) -> Lease: ...
    def lease_many(self, max_messages: int, /, *, timeout: float | None = None) -> Batch: ...
    def next(self) -> int: ...
    def done(self, sequence: int, /) -> None: ...
    def available(self) -> int: ...
    def slot(self, sequence: int, /) -> memoryview: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    def hear_ends(self, since: int, /) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes: ...
    # in event_loop.py
    async def get(self, *, timeout: float | None = None) -> bytes: ...
    async def ready(self, *, timeout: float | None = None) -> bool: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...

@final
class Lease(_Closing):
    @property
    def data(self) -> memoryview: ...
    @property
    def message_id(self) -> int: ...
    @property
    def time(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    def nack(self) -> None: ...
    def release(self) -> None: ...
    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Batch(_Closing):
    @property
    def array(self) -> NDArray[np.uint8]: ...
    @property
    def lengths(self) -> NDArray[np.uint32]: ...
    @property
    def message_ids(self) -> NDArray[np.uint64]: ...
    @property
    def times(self) -> NDArray[np.uint64]: ...
    @property
    def kinds(self) -> NDArray[np.uint8]: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def slots(self) -> memoryview: ...
    @property
    def offsets(self) -> NDArray[np.uint64]: ...
    @property
    def redelivered(self) -> bool: ...
    def nack(self, first: int = 0, count: int = ...) -> None: ...
    def release(self) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> memoryview: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
