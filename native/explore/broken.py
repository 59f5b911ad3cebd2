"""Break the protocol on purpose, one way at a time, and see that the explorer notices.

Usage: PYTHONPATH=native python -m explore.broken BUILD_DIRECTORY
"""

import sys

from explore.breaks import Harness, run_all
from explore.broken_branches import BRANCHES
from explore.broken_ends import ENDS
from explore.broken_leases import LEASES
from explore.broken_messages import MESSAGES
from explore.broken_reading import READING
from explore.broken_waiting import WAITING

BREAKS = [*MESSAGES, *LEASES, *READING, *BRANCHES, *WAITING, *ENDS]


if __name__ == "__main__":
    # explore_atomics.h and system.c stand in for the files that are replaced
    harness = Harness(
        "explore", ("-DSHMRING_EXPLORE",), replaces=("atomics.c", "contention.c", "locks.c")
    )
    sys.exit(run_all(harness, BREAKS, *sys.argv[1:]))
