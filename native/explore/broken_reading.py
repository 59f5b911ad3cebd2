"""Breaks of reads without a branch, each with a case of cases_reading.c."""

from explore.breaks import Break

# CHANGE: edit this for a new case of the explorer
READING = [
    Break(
        "who has read a seat does not look whose it is now",
        "seats.c",
        "\t\tif (seat_is_still_of(s, owner))",
        "\t\tif (owner)",
        "a seat is read while it changes hands",
    ),
    Break(
        "who has read a seat looks at its state only",
        "seats.c",
        "now.state == owner->state && now.joined_ns == owner->joined_ns && now.pid",
        "now.state == owner->state && now.pid",
        "a seat is read while it changes hands",
    ),
    Break(
        "a new owner has another time of joining than the last one, and not than all",
        "seats.c",
        "last - now < SET_BACK_NS ? last + 1 : now",
        "last == now ? now + 1 : now",
        "a seat changes hands twice while it is read, and the clock stands still",
    ),
]
