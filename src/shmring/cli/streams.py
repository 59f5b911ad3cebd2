"""Standard streams that are closed, as daemons have them."""

from __future__ import annotations

import os
import sys

__all__ = ["replace_closed_streams"]

# What nobody reads or writes is missed by nobody, and what somebody does is an error that the
# system has words for. What stderr would have said is lost.
_INSTEAD = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}


def replace_closed_streams() -> None:
    """Put something in their place, here and in the processes that are started."""
    for number, (name, flags) in enumerate(_INSTEAD.items()):
        if getattr(sys, name) is None:  # the lowest number that is free is the stream's own
            fd = os.open(os.devnull, flags)
            os.set_inheritable(fd, fd == number)
            setattr(sys, name, os.fdopen(fd, "w" if number else "r", encoding="utf-8"))
