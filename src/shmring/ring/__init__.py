"""Rings for Python.

The modules contain the handles, names and records of rings, the graph of a ring's branches, and the
functions that wait for several consumers and producers at once.
"""

from shmring.ring.handle import Consumer, Producer, Ring
from shmring.ring.making import (
    DEFAULT_SLOTS,
    attach,
    attach_or_make,
    create,
    look_on,
    open_or_create,
    open_or_make,
)

__all__ = [
    "DEFAULT_SLOTS",
    "Consumer",
    "Producer",
    "Ring",
    "attach",
    "attach_or_make",
    "create",
    "look_on",
    "open_or_create",
    "open_or_make",
]
