"""Breaks of reads without a branch, each with a case of cases_reading.c."""

from explore.breaks import Break

# CHANGE: edit this for a new case of the explorer
READING = [
    Break(
        "a process that has read a seat does not check its owner again",
        "seats.c",
        "\t\tif (seat_is_still_of(s, owner))",
        "\t\tif (owner)",
        "a seat is read while it changes hands",
    ),
    Break(
        "a process that has read a seat checks only its state again",
        "seats.c",
        "now.state == owner->state && now.joined_ns == owner->joined_ns && now.pid",
        "now.state == owner->state && now.pid",
        "a seat is read while it changes hands",
    ),
    Break(
        "a new owner's time of joining differs only from the last owner's",
        "seats.c",
        "last - now < SET_BACK_NS ? last + 1 : now",
        "last == now ? now + 1 : now",
        "a seat changes hands twice while it is read, and the clock stands still",
    ),
]
