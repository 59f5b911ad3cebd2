"""``python -m shmring``."""

import sys

from shmring.cli import main

sys.exit(main())
