"""Breaks of the ends of streams, each with a case of cases_ends.c."""

from explore.breaks import END_COUNTED_LATE, Break

# CHANGE: edit this for a new case of the explorer
ENDS = [
    END_COUNTED_LATE,
    Break(
        "a consumer that joins passes every marker that follows the last end",
        "end.c",
        "\t\t\tif (at - e.crc >= ended)\n\t\t\t\tbreak;\n",
        "",
        "the end of a stream: of a run without messages, for which one joins",
    ),
    Break(
        "every consumer that finds an end counts it",
        "end.c",
        "\t\tbool first = ENDED_AT(before) <= seen >> 8;",
        "\t\tbool first = true;",
        "the end of a stream: two consumers",
    ),
    Break(
        "an end that a dead consumer announced is not counted in full",
        "end.c",
        "\tif ((uint8_t)ends != (uint8_t)after)",
        "\tif (after != seen && ENDED_AT(before) <= seen >> 8 && (uint8_t)ends != (uint8_t)after)",
        "the end of a stream: two consumers; one may die",
    ),
    Break(
        "the end wakes no consumer",
        "end.c",
        "\tif (moved && marker) /*",
        "\tif (false && moved && marker) /*",
        "asleep: the end of a stream wakes all",
    ),
    Break(
        "a consumer that waits at an end behind leases of the dead does not sleep",
        "end.c",
        "\tif (!load_relaxed(&b->d.orphans))\n\t\treturn false;\n\tseen",
        "\treturn false;\n\tseen",
        "asleep: the end waits for what the dead held",
    ),
    Break(
        "a consumer trusts a marker that may be overwritten",
        "end.c",
        "\tif (load_relaxed(&consumer->branch->taken.v) != seen)\n\t\treturn false;\n",
        "",
        "the end of a stream: it overwrites what two look at",
        weak=True,
    ),
    Break(
        "a claim that was given up ends a run",
        "end.c",
        "\t\tat = e.next;\n\t}\n\treturn end;",
        "\t\tat = end = e.next;\n\t}\n\treturn end;",
        "the end of a stream: of a run that was given up: one is there, one joins",
    ),
]
