"""What a durable queue takes for an item."""

from __future__ import annotations

from shmring.durable.base.files import Buffer
from shmring.errors import MessageTooLarge

__all__ = ["item_bytes"]

_LARGEST = 0xFFFFFFFF


def item_bytes(data: Buffer) -> bytes:
    """Return an item's bytes, a copy of what may change.

    Raises
    ------
    TypeError : it has no bytes
    MessageTooLarge : it has 4 GiB or more
    """
    # bytes() alone would make seven zeros of the number 7.
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(
            f"an item is bytes or another object with the buffer protocol (bytearray, memoryview, "
            f"numpy array), not {type(data).__name__}; encode it first"
        ) from None
    if view.nbytes > _LARGEST:
        raise MessageTooLarge(f"an item of {view.nbytes} bytes; the largest is {_LARGEST}")
    return data if isinstance(data, bytes) else view.tobytes()
