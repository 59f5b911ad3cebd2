"""Sends one message and the end marker to a ring."""

import shmring

ring = shmring.open_or_create("orders", slots=65_536)
with ring.producer() as out:
    out.push(b"hello")
    out.push_end()
