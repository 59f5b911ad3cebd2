"""The options of a read or a write, checked: those of the jar's ``format("shmring")``."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shmring.names import PREFIX, SHM_FOLDER
from shmring.ring import Ring, attach

if TYPE_CHECKING:
    from shmring.ring import Start

__all__ = ["UNLIMITED", "ReadOptions", "WriteOptions", "attach_ring", "is_here"]

UNLIMITED = 2**31 - 1  # what Spark's rows and the core's messages of one take are counted in


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read.

    Parameters
    ----------
    rings : names, or paths of ring files (with a slash)
    branch : to join; empty for one that nobody else sees
    start : where a branch begins that is not there yet
    max_messages : a task stops behind so many
    timeout : seconds that a task waits for a message
    until_end : a task reads up to the end marker; otherwise what is there when it begins
    release_at_end : messages are released when all of them were handed over; otherwise one by one
    max_messages_per_trigger : of a stream
    fail_on_data_loss : of a stream
    journal : directory of the ring's journal, for a stream whose checkpoint is older than the ring
    """

    rings: tuple[str, ...]
    branch: str
    start: Start | int
    max_messages: int
    timeout: float | None
    until_end: bool
    release_at_end: bool
    max_messages_per_trigger: int
    fail_on_data_loss: bool
    journal: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read them from Spark's."""
        if options.get("hosts"):
            raise ValueError(
                "option hosts needs the jar: Spark asks Python data sources not where their "
                "partitions lie"
            )
        rings = _ring_names(options)
        journal = options.get("journal", "")
        if journal and len(rings) != 1:
            raise ValueError(f"option journal is of one ring, and these are {', '.join(rings)}")
        until_end = _choice(options, "until", "empty", "end") == "end"
        release = _choice(options, "release", *("message", "task")[:: 1 if until_end else -1])
        return cls(
            rings=rings,
            branch=options.get("branch", ""),
            start=_start(options.get("start", "earliest")),
            max_messages=_positive(options, "maxMessages"),
            timeout=_timeout(options),
            until_end=until_end,
            release_at_end=release == "task",
            max_messages_per_trigger=_positive(options, "maxMessagesPerTrigger"),
            fail_on_data_loss=_choice(options, "failOnDataLoss", "true", "false") == "true",
            journal=journal,
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write.

    Parameters
    ----------
    ring : name, or path of the ring file
    timeout : seconds that the commit of a job waits for room
    atomic : a job that is too large to become readable at once is refused
    end_marker : the job's last message is the end marker
    in_doubt : what to do with an epoch of which nobody can say whether it was published
    """

    ring: str
    timeout: float
    atomic: bool
    end_marker: bool
    in_doubt: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read them from Spark's."""
        rings = _ring_names(options)
        if len(rings) != 1:
            raise ValueError(f"a write goes into one ring, not into {', '.join(rings)}")
        timeout = _timeout(options)
        return cls(
            ring=rings[0],
            timeout=300.0 if timeout is None else timeout,
            atomic=_choice(options, "atomic", "false", "true") == "true",
            end_marker=_choice(options, "endMarker", "false", "true") == "true",
            in_doubt=_choice(options, "inDoubt", "fail", "skip", "write"),
        )


def attach_ring(name: str, *, read_only: bool = False) -> Ring:
    """Attach to a ring by its name, or by its path if that has a slash."""
    if "/" in name:
        return attach(path=name, read_only=read_only)
    return attach(name, read_only=read_only)


def is_here(name: str) -> bool:
    """Whether a ring's file is on this host; what is wrong with it shows when it is attached."""
    return os.path.exists(name if "/" in name else f"{SHM_FOLDER}/{PREFIX}{name}")


def _ring_names(options: Mapping[str, str]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for part in options.get("ring", "").split(","):
        name = part.strip()
        if name and glob.has_magic(name):
            names.update(dict.fromkeys(_matching(name)))
        elif name:
            names[name] = None
    if not names:
        raise ValueError(
            'option ring is missing: .option("ring", NAME) with the name of a ring, a list with '
            "commas, or a pattern such as orders-*"
        )
    return tuple(names)


def _matching(pattern: str) -> list[str]:
    named = "/" not in pattern
    folder = f"{SHM_FOLDER}/{PREFIX}"
    found = sorted(glob.glob(folder + pattern if named else pattern))
    if not found:
        raise ValueError(f'no ring on this host matches "{pattern}"')
    return [path.removeprefix(folder) for path in found] if named else found


def _start(text: str) -> Any:
    if text in ("latest", "earliest"):
        return text
    if text.isdecimal():
        return int(text)
    raise ValueError(f'option start must be latest, earliest or a sequence, not "{text}"')


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    text = options.get(name, choices[0]).lower()
    if text not in choices:
        raise ValueError(f'option {name} must be {" or ".join(choices)}, not "{text}"')
    return text


def _positive(options: Mapping[str, str], name: str) -> int:
    text = options.get(name, str(UNLIMITED))
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f'option {name} must be a positive number, not "{text}"')
    return min(int(text), UNLIMITED)


def _timeout(options: Mapping[str, str]) -> float | None:
    text = options.get("timeout", "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ValueError(f'option timeout is in seconds, not "{text}"')
    return seconds
