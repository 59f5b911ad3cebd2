"""Putting items in: the common part of a session and an append-only queue."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING

from shmring.closing import Closing
from shmring.durable.base.files import Buffer
from shmring.durable.base.items import Packing, listed

if TYPE_CHECKING:
    from shmring._shmring import Rows

__all__ = ["Intake"]

# Beyond so many bytes, items are written early, uncommitted, and not held in memory.
BUFFER_BYTES = 1 << 20


class Intake(Closing):
    """Takes items and holds them until they are written."""

    _packing: Packing

    def __init__(self) -> None:
        # Guards the items that are not written yet, and their writing.
        self._lock = threading.RLock()

    @abstractmethod
    def _check_writable(self) -> None:
        """Raise if no item can be put in any more."""

    @abstractmethod
    def _write_early(self) -> None:
        """Write the items that are held, uncommitted."""

    def enqueue(self, data: Buffer) -> None:
        """Put an item at the back; it is committed by the next flush.

        Raises
        ------
        NoSpace : the disk is full; this item was not put in, all items before it were
        MessageTooLarge : the item has 4 GiB or more
        TypeError : `data` is not bytes-like
        """
        with self._lock:
            self._check_writable()
            if self._packing.nbytes > BUFFER_BYTES:
                self._write_early()
            self._packing.add(data)

    def enqueue_many(self, items: Rows) -> int:
        """Put items at the back, in their order; otherwise as :meth:`enqueue`.

        Parameters
        ----------
        items : bytes-like objects, a list of them or any other iterable, which may use this queue
            itself; or a uint8 array of shape (n, k); or an Arrow array of binary, large binary or
            fixed-size binary without nulls

        Returns
        -------
        the number of items

        Raises
        ------
        NoSpace : the disk is full; none of these items was put in, all items before them were
        MessageTooLarge, TypeError, ValueError : one of them cannot be an item; none was put in
        """
        with self._lock:
            self._check_writable()
            if self._packing.nbytes > BUFFER_BYTES:
                self._write_early()
        rows = listed(items)  # before the lock: it may run code that uses this queue
        with self._lock:
            self._check_writable()
            return self._packing.add_many(rows)
