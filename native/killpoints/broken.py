"""Break the making of rings on purpose, and see that the kill points notice.

Usage: PYTHONPATH=native python -m killpoints.broken BUILD_DIRECTORY
"""

import sys

from breaks import Break, Harness, run_all

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
    ),
    Break(
        "a ring gets its name before its maker is in it",
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
    ),
    Break(
        "a draft does not say whose it is before it is filled",
        "create.c",
        "if (pwrite(fd, (const uint8_t *)h + before, bytes, (off_t)before) == (ssize_t)bytes)\n",
        "",
        "create without O_TMPFILE",
    ),
]


if __name__ == "__main__":
    harness = Harness("killpoints", ("-Wl,-z,now",), ("--stride", "31"))
    sys.exit(run_all(harness, BREAKS, sys.argv[1]))
