"""Prints the messages of a ring until the end marker."""

import shmring

ring = shmring.open_or_create("orders", slots=65_536)
with ring.consumer("billing", start="earliest") as inp:
    for data in inp:
        print(data.decode())
