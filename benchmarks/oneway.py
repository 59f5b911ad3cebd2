"""One process sends, another receives: a contestant made of a peer's functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.harness import Sample, Unavailable
from benchmarks.payload import BATCH, MESSAGE_BYTES
from benchmarks.processes import Role, run_together


def peer(name: str) -> ModuleType:
    """The module of a transport.

    Raises
    ------
    Unavailable : its package is not installed
    """
    try:
        return importlib.import_module(f"benchmarks.peers.{name}")
    except ImportError as error:
        raise Unavailable(f"not installed here: {error}") from None


def _roles(first: Any, second: Any, pinned: bool) -> list[Role]:
    return [
        Role(target, args, core if pinned else None)
        for core, (target, args) in enumerate((first, second))
    ]


class OneWay:
    """Messages from one process to another.

    Parameters
    ----------
    name : of the peer's module
    how : "" for single messages, "_batches" or "_blocks": which functions
    guess : messages a second to expect, until it has been measured
    unit : messages are sent in multiples of this
    pinned : each process on a core of its own; not for peers with threads of their own
    link : arguments of the peer's link()
    """

    def __init__(
        self,
        name: str,
        how: str = "",
        *,
        guess: float = 5e5,
        unit: int = BATCH,
        pinned: bool = True,
        **link: Any,
    ) -> None:
        self._name = name
        self._how = how
        self._rate = guess
        self._unit = unit
        self._pinned = pinned
        self._link = link

    def rate(self, seconds: float) -> float:
        """Measure once; messages a second."""
        module = peer(self._name)
        send: Callable[..., float] = getattr(module, f"send{self._how}")
        receive: Callable[..., float] = getattr(module, f"receive{self._how}")
        count = max(4, int(self._rate * seconds) // self._unit) * self._unit
        with module.link(**self._link) as link:
            started, ended = run_together(
                _roles((send, (link, count)), (receive, (link, count)), self._pinned)
            )
        self._rate = count / (ended - started)
        return self._rate


class Messages(OneWay):
    """300-byte messages; the figure is millions a second."""

    def __call__(self, seconds: float) -> Sample:
        rate = self.rate(seconds)
        return Sample(rate / 1e6, {"GB/s": rate * MESSAGE_BYTES / 1e9})


class Blocks(OneWay):
    """Messages of `nbytes`, which are many; the figure is GB/s."""

    def __init__(self, name: str, how: str = "_blocks", *, nbytes: int, **link: Any) -> None:
        super().__init__(name, how, guess=2e9 / nbytes, unit=1, nbytes=nbytes, **link)
        self._nbytes = nbytes

    def __call__(self, seconds: float) -> Sample:
        rate = self.rate(seconds)
        return Sample(rate * self._nbytes / 1e9, {"us a batch": 1e6 / rate})


class ArrowBatches(Blocks):
    """Arrow batches of `nbytes`; the figure is GB/s."""

    def __init__(self, name: str, *, nbytes: int, **link: Any) -> None:
        super().__init__(name, "", nbytes=nbytes, **link)


class RoundTrip:
    """A message there and back; the figure is the median in microseconds."""

    def __init__(self, name: str, *, pinned: bool = True, **link: Any) -> None:
        self._name = name
        self._pinned = pinned
        self._link = link

    def __call__(self, seconds: float) -> Sample:
        module = peer(self._name)
        with module.link(**self._link) as link:
            trips, _ = run_together(
                _roles((module.ping, (link, seconds)), (module.pong, (link, seconds)), self._pinned)
            )
        return Sample(trips["median"], {"p99 us": trips["p99"], "p99.9 us": trips["p999"]})
