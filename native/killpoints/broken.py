"""Break the core on purpose, one way at a time, and see that the kill points notice.

Usage: PYTHONPATH=native python -m killpoints.broken BUILD_DIRECTORY
"""

import sys

from explore.breaks import (
    END_COUNTED_LATE,
    LEASE_STRUCK_FIRST,
    RANGE_STRUCK_FIRST,
    Break,
    Harness,
    run_all,
)

# Kills after each 7th of the 70,000 instructions of a creation; other breaks may show after one.
FEWER = ("--stride", "7")

BREAKS = [
    Break(
        "a ring gets its name before it is filled",
        "create.c",
        "\tstatus = draft_fill(lock_file_number(d.file), name, options->schema, &h);\n"
        "\tif (!status && ring)\n"
        "\t\tstatus = attach_draft(d.path, name, &r);\n"
        "\tif (!status && !draft_publish(&d, path))",
        "\tif (!draft_publish(&d, path))\n"
        "\t\treturn fail_exists(path);\n"
        "\tstatus = draft_fill(lock_file_number(d.file), name, options->schema, &h);\n"
        "\tif (!status && ring)\n"
        "\t\tstatus = attach_draft(d.path, name, &r);\n"
        "\tif (false)",
        "create",
        arguments=FEWER,
    ),
    Break(
        "a ring gets its name before its creator has attached",
        "create.c",
        "\tif (!status && ring)\n"
        "\t\tstatus = attach_draft(d.path, name, &r);\n"
        "\tif (!status && !draft_publish(&d, path))",
        "\tif (!status && !draft_publish(&d, path))\n"
        "\t\treturn fail_exists(path);\n"
        "\tif (!status && ring)\n"
        "\t\tstatus = attach_draft(d.path, name, &r);\n"
        "\tif (false)",
        "create",
        arguments=FEWER,
    ),
    Break(
        "a draft has no owner's mark before it is filled",
        "create.c",
        "if (pwrite(fd, (const uint8_t *)h + before, bytes, (off_t)before) == (ssize_t)bytes)\n",
        "",
        "create without O_TMPFILE",
        arguments=FEWER,
    ),
    LEASE_STRUCK_FIRST._replace(case="hand back"),
    RANGE_STRUCK_FIRST._replace(case="recover two of one branch"),
    Break(
        "a consumer that takes over an orphan's seat frees the seat first",
        "seats.c",
        "\tstore_relaxed(&s->lease.take_lo, NONE);\n\tstore_release(&s->lease.take_end, 0);\n"
        "\tstore_relaxed(&s->lease.adopt_from, 0);\n\tzero_counters(s);",
        "\tstore_release(&s->id.state, SEAT_FREE);\n\tzero_counters(s);",
        "join where orphans have all seats",
    ),
    Break(
        "the halves of an interrupted split stay apart",
        "takes.c",
        "\tseat_join_ranges(s, false);\n\tsettle_move(",
        "\tsettle_move(",
        "hand back by the last range",
    ),
    END_COUNTED_LATE._replace(case="take up to the end"),
    Break(
        "a new branch is active before it is placed",
        "graph.c",
        "\tRETURN_NOT_OK(place_branch(r, *id, o));\n",
        "\tstore_release(&d->state, BRANCH_ACTIVE);\n\tRETURN_NOT_OK(place_branch(r, *id, o));\n",
        "subscribe behind an open claim",
    ),
    Break(
        "the repair of the graph does not derive followers and roots from the upstreams",
        "branches.c",
        "\trepair_orphans(r);\n\tderive(r);\n",
        "\trepair_orphans(r);\n",
        "follow",
    ),
]


if __name__ == "__main__":
    harness = Harness("killpoints", ("-Wl,-z,now",))
    sys.exit(run_all(harness, BREAKS, *sys.argv[1:]))
