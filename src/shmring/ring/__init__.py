"""The ring for Python: handles, names and records of rings, sequences, and waits for several."""

from shmring.ring.handle import (
    DEFAULT_SLOTS,
    Consumer,
    Producer,
    Ring,
    attach,
    attach_or_make,
    create,
    look_on,
    open_or_create,
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
]
