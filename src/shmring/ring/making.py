"""Calls that make a ring or attach to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Unpack

from shmring import _shmring
from shmring.common.arguments import CLOCKS, Clock, choose, integer, schema_bytes, slots_of
from shmring.errors import RingExists, RingNotFound, ShmringError
from shmring.ring.handle import Ring
from shmring.ring.names import Path, attach_core, locate, reap

if TYPE_CHECKING:
    import pyarrow as pa

    from shmring.ring.records import CreateOptions

DEFAULT_SLOTS = 65_536


# CHANGE: edit this for a new option of a ring
def create(
    name: str | None = None,
    *,
    slots: int = DEFAULT_SLOTS,
    path: Path | None = None,
    participants: int = 128,
    single_producer: bool = False,
    checksum: bool = False,
    clock: Clock = "coarse",
    mode: int = 0o600,
    schema: pa.Schema | None = None,
    prefault: bool = False,
    first_sequence: int = 0,
    temporary: bool = False,
) -> Ring:
    """Make a ring and attach to it. The ring stays until it is unlinked.

    Parameters
    ----------
    name : 1 to 200 of the characters A-Z a-z 0-9 . _ -; or None with `path`
    slots : number of 300-byte slots, a power of two, at least 1,024; a slot costs 332 bytes
    path : a file to use instead of shared memory
    participants : the most participants at a time, up to 248. An attached ring counts as one
        participant together with its first producer or consumer. Each further producer or consumer
        counts as one more
    single_producer : refuse a second living producer
    checksum : store and check a CRC32C of every message
    clock : source of the messages' time: "coarse" (1 to 4 ms), "precise" (costs about 20 ns), "off"
    mode : permission bits of the file
    schema : Arrow schema to store in the ring, for readers that join late
    prefault : touch every page now
    first_sequence : where message_ids begin
    temporary : unlink the ring when this Ring is closed or collected, at the latest when the
        process exits. If the process is killed, gc() unlinks it after all participants have gone

    Raises
    ------
    ValueError : a name, path, size or option is not valid
    RingExists : there is a ring of this name
    NoSpace : the file system has too little space
    PermissionRefused : the folder is not writable
    """
    label, where = locate(name, path)
    core = None
    try:
        core = _shmring.make(
            where,
            label,
            mode=integer("mode", mode, 0, 0o777),
            slots=slots_of("slots", slots),
            participants=integer("participants", participants, 1, _shmring.MAX_PARTICIPANTS),
            single_producer=single_producer,
            checksum=checksum,
            prefault=prefault,
            clock=choose(CLOCKS, "clock", clock),
            schema=schema_bytes(schema),
            first_sequence=integer("first_sequence", first_sequence),
            temporary=temporary,
        )
        return Ring(core, label, where, 0, temporary=temporary)
    except BaseException as error:
        # Remove a temporary ring if Ctrl-C, or an exception of a signal's handler, has come after
        # the ring was made: no Ring object exists that could remove it later.
        if temporary and not isinstance(error, Exception):
            with suppress(ShmringError):
                if core is not None:
                    core.close()
                reap(where)
        raise


def attach(
    name: str | None = None,
    *,
    path: Path | None = None,
    read_only: bool = False,
    foreign_owner: bool = False,
) -> Ring:
    """Attach to an existing ring.

    Parameters
    ----------
    name, path : one of the two
    read_only : only observe the ring, without becoming a participant
    foreign_owner : accept a ring that another user owns; trust this user, who can forge messages

    Raises
    ------
    RingNotFound : there is no such ring
    NotARing, VersionMismatch, Damaged : the file is not a ring that this version can use
    PermissionRefused : the ring is another user's
    LimitReached : the ring has no room for another participant
    """
    label, where = locate(name, path)
    flags = _shmring.READ_ONLY if read_only else 0
    if foreign_owner:
        flags |= _shmring.FOREIGN_OWNER
    return Ring(attach_core(label, where, flags), label, where, flags, temporary=False)


def look_on(name: str | None = None, *, path: Path | None = None) -> Ring:
    """Attach to any user's ring, only to observe it.

    If other users can shorten the ring's file, its present contents are copied into private memory:
    touching a mapping of a shortened file would end this process by SIGBUS. The copy has no
    payload.
    """
    label, where = locate(name, path)
    flags = _shmring.READ_ONLY | _shmring.FOREIGN_COPY
    return Ring(attach_core(label, where, flags), label, where, flags, temporary=False)


def open_or_create(
    name: str | None = None, *, path: Path | None = None, **options: Unpack[CreateOptions]
) -> Ring:
    """Attach to a ring, or make it if there is none; several processes may call this at once.

    Parameters
    ----------
    name, path : one of the two
    options : of :func:`create`; an existing ring does not change, and may have more `slots`

    Raises
    ------
    RingExists : there is a ring with fewer slots than `slots`
    the other errors of :func:`create` and :func:`attach`
    """
    return open_or_make(name, path, **options)[0]


def open_or_make(
    name: str | None, path: Path | None, **options: Unpack[CreateOptions]
) -> tuple[Ring, bool]:
    """Do the work of open_or_create(); return also whether the ring was made now."""
    least = slots_of("slots", options["slots"]) if "slots" in options else 0
    ring, made = attach_or_make(name, path, **options)
    if ring.slots < least:
        ring.close()
        raise RingExists(
            f'ring "{ring.name or ring.path}" exists already with {ring.slots} slots, fewer than '
            f"{least}; ask for fewer slots, or unlink the ring first"
        )
    return ring, made


def attach_or_make(
    name: str | None, path: Path | None, **options: Unpack[CreateOptions]
) -> tuple[Ring, bool]:
    """Attach to a ring, whatever its size, or make it; return also whether it was made now."""
    while True:
        with suppress(RingNotFound):
            return attach(name, path=path), False
        with suppress(RingExists):
            return create(name, path=path, **options), True
