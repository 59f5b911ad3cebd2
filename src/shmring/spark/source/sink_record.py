"""Which epoch of a streaming query a ring has seen last.

A small file beside the ring, since both live as long, which the jar reads and writes too:
``<uuid of the ring> <epoch> <first sequence> begun|done``, padded to 128 bytes. One write stores it
whole, also if the process is killed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shmring import beside
from shmring.errors import Contended, ShmringError
from shmring.spark.source.stream_ring import uuid_of

if TYPE_CHECKING:
    from shmring.ring import Ring
    from shmring.spark.source.options import WriteOptions

__all__ = ["SinkRecord"]

_BYTES = 128


class SinkRecord:
    """The record of a query and a ring."""

    def __init__(self, ring: Ring, query: str) -> None:
        self._path = beside.place(ring.path, beside.SINK, query)
        self._ring = ring
        self._claimed = 0

    def is_published(self, epoch: int, options: WriteOptions) -> bool:
        """Whether the ring has this epoch.

        Raises
        ------
        ShmringError : nobody can say, and the options do not say what to do then
        """
        found = self._read()
        if found is None or found[0] < epoch:
            return False
        last, sequence, done = found
        if done or last > epoch:
            return True
        # Between its two writes the record does not say whether the one store came to pass.
        with suppress(Contended):
            self._ring.recover()
        if self._is_message(sequence):
            return True
        if self._ring.floor <= sequence:
            return False
        if options.in_doubt == "fail":
            raise ShmringError(
                f'ring "{options.ring}": the process that published epoch {epoch} was killed in '
                f"that very moment, and sequence {sequence}, which would tell whether it had, was "
                f'used again since. Restart with .option("inDoubt", "skip") or "write"'
            )
        return options.in_doubt == "skip"

    def begin(self, epoch: int, claimed: int) -> None:
        """Say at which sequence the epoch is about to be published."""
        self._claimed = claimed
        self._write(f"{epoch} {claimed} begun")

    def finish(self, epoch: int) -> None:
        """Say that it was."""
        self._write(f"{epoch} {self._claimed} done")

    def _read(self) -> tuple[int, int, bool] | None:
        try:
            with open(self._path, encoding="ascii") as file:
                ring, epoch, sequence, state = file.read().split()
        except FileNotFoundError:
            return None
        if ring != uuid_of(self._ring):  # one that was made anew has seen nothing
            return None
        return int(epoch), int(sequence), state == "done"

    def _write(self, text: str) -> None:
        line = f"{uuid_of(self._ring)} {text}".ljust(_BYTES - 1) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, line.encode("ascii"), 0)
        finally:
            os.close(file)

    def _is_message(self, sequence: int) -> bool:
        ring = self._ring
        slot = sequence % ring.slots
        rows = ring.rows(capacity=0) if ring.info.scattered else ring.rows(slot, slot + 1, 0)
        return any(row[1] == sequence for row in rows)
