"""The options of a read or a write, checked: those of the jar's ``format("shmring")``."""

from __future__ import annotations

import fnmatch
import glob
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from shmring.choices import DEFAULT_START, STARTS
from shmring.names import rings as rings_here
from shmring.ring import Ring, attach

if TYPE_CHECKING:
    from shmring.ring import Start

__all__ = ["UNLIMITED", "ReadOptions", "WriteOptions", "attach_ring"]

_HOST_WAIT = 30.0  # seconds
_NUMBER = r"\d{1,15}(?:\.\d{0,9})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
_SECONDS = {
    **dict.fromkeys(("us", "microsecond"), 1e-6),
    **dict.fromkeys(("ms", "millisecond"), 1e-3),
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
}

UNLIMITED = 2**31 - 1  # what Spark's rows and the core's messages of one take are counted in


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read.

    Parameters
    ----------
    rings : names, or paths of ring files (with a slash)
    host_wait : seconds that tasks on other hosts wait for an executor on the driver's
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
    host_wait: float
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
            host_wait=_seconds(options, "hostWait", _HOST_WAIT),
            branch=options.get("branch", ""),
            start=_start(options.get("start", DEFAULT_START)),
            max_messages=_positive(options, "maxMessages"),
            timeout=_seconds(options, "timeout", None),
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
    host_wait : seconds that tasks on other hosts wait for an executor on the driver's
    timeout : seconds that the commit of a job waits for room
    atomic : a job that is too large to become readable at once is refused
    end_marker : the job's last message is the end marker
    in_doubt : what to do with an epoch of which nobody can say whether it was published
    """

    ring: str
    host_wait: float
    timeout: float
    atomic: bool
    end_marker: bool
    in_doubt: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        rings = _ring_names(options)
        if len(rings) != 1:
            raise ValueError(f"a write goes into one ring, not into {', '.join(rings)}")
        return cls(
            ring=rings[0],
            host_wait=_seconds(options, "hostWait", _HOST_WAIT),
            timeout=_seconds(options, "timeout", 300.0),
            atomic=_choice(options, "atomic", "false", "true") == "true",
            end_marker=_choice(options, "endMarker", "false", "true") == "true",
            in_doubt=_choice(options, "inDoubt", "fail", "skip", "write"),
        )


def attach_ring(name: str, *, read_only: bool = False) -> Ring:
    """Attach to a ring by its name, or by its path if that has a slash."""
    if "/" in name:
        return attach(path=name, read_only=read_only)
    return attach(name, read_only=read_only)


def _ring_names(options: Mapping[str, str]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for part in _given(options).split(","):
        name = part.strip()
        if name and glob.has_magic(name):
            names.update(dict.fromkeys(_matching(name)))
        elif name:
            names[name] = None
    if not names:
        raise ValueError(
            'option ring is missing: .option("ring", NAME) or .load(NAME) with the name of a ring, '
            "a list with commas, or a pattern such as orders-*"
        )
    return tuple(names)


def _given(options: Mapping[str, str]) -> str:
    """The option, or else what load() or save() was given. A table in a catalog has a path too."""
    if options.get("ring", "").strip():
        return options["ring"]
    if "paths" in options:  # Spark makes JSON of several arguments of load()
        return ",".join(json.loads(options["paths"]))
    path = options.get("path", "")
    return unquote(urlsplit(path).path) if path.startswith("file:") else path


def _matching(pattern: str) -> list[str]:
    named = "/" not in pattern
    found = fnmatch.filter(rings_here(), pattern) if named else sorted(glob.glob(pattern))
    if not found:
        raise ValueError(f'no ring on this host matches "{pattern}"')
    return found


def _start(text: str) -> Any:
    if text in STARTS:
        return text
    if text.isdecimal():
        return int(text)
    raise ValueError(f'option start must be {", ".join(STARTS)} or a sequence, not "{text}"')


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    given = options.get(name, choices[0])
    text = given.strip().lower()
    if text not in choices:
        raise ValueError(f'option {name} must be {" or ".join(choices)}, not "{given}"')
    return text


def _positive(options: Mapping[str, str], name: str) -> int:
    text = options.get(name, str(UNLIMITED))
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f'option {name} must be a positive number, not "{text}"')
    return min(int(text), UNLIMITED)


def _seconds(options: Mapping[str, str], name: str, otherwise: Any) -> Any:
    given = options.get(name, "")
    text = given.strip().lower()
    if not text:
        return otherwise
    seconds = _duration(text)
    if seconds is None:
        raise ValueError(
            f"option {name} must be a time: seconds, or a number with its unit such as 500ms, "
            f'2 minutes, not "{given}"'
        )
    return seconds


def _duration(text: str) -> float | None:
    """Seconds of 10, 0.5, 10s, 500ms, 2 minutes, interval 1 hour 30 minutes."""
    if re.fullmatch(_NUMBER, text):
        return float(text)
    rest = text.removeprefix("interval ").strip()
    seconds = 0.0
    while rest:
        part = _PART.match(rest)
        if part is None:
            return None
        unit = part[2]
        one = _SECONDS.get(unit, _SECONDS.get(unit.removesuffix("s")) if len(unit) > 3 else None)
        if one is None:
            return None
        seconds += float(part[1]) * one
        rest = rest[part.end() :]
    return seconds if text.removeprefix("interval ").strip() else None
