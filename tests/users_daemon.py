"""A daemon module of a user's own, as coverage tools and error trackers have them."""

from __future__ import annotations

import os

from shmring.spark import daemon

if __name__ == "__main__":
    os.environ["USERS_DAEMON"] = "has begun"
    daemon.main()
