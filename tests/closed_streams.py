"""For a child process: whether a library that logs to a closed standard stream hits a file."""

from __future__ import annotations

# The beginning of its source; log() ends the process with 1 if 0 to 2 can be written to.
LOG = """
    import os, sys

    def log():
        for number in range(3):
            try:
                os.write(number, b"what a library has to say")
            except OSError:
                continue
            os._exit(1)
"""
