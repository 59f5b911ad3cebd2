"""How fast do leased messages come to a GPU? With the ring pinned, and otherwise."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import shmring
from benchmarks.harness import Question, Row, Sample, Settings, Unavailable
from benchmarks.payload import unique_name

TOTAL = 256 << 20  # bytes that are leased at once
SLOTS = 1 << 21  # 629 MB, mapped twice
SIZES = {"64 KB": 64 << 10, "1 MB": 1 << 20, "16 MB": 16 << 20}
LEASES = 16  # for to_device(), which is a lease's
WAYS = {
    "as it is (pageable)": "pageable",
    "through a pinned buffer": "staged",
    "ring pinned once": "pinned",
    "ring pinned, lease.to_device()": "helped",
}

Copy = Callable[[Any, Any], object]


class _Bench:
    """A ring, and the ways in which its messages come to the device."""

    torch: Any
    ring: shmring.Ring

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        try:
            import torch
        except ImportError:
            raise Unavailable("needs torch") from None
        if not torch.cuda.is_available():
            raise Unavailable("needs a GPU that torch can use")
        self.torch = torch
        torch.cuda.init()
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        with shmring.create(unique_name(), slots=SLOTS, temporary=True, prefault=True) as self.ring:
            yield

    def _tensor(self, message: Any) -> Any:
        return self.torch.frombuffer(message, dtype=self.torch.uint8)

    def _way(self, way: str, nbytes: int) -> Copy:
        if way == "pageable":
            return lambda message, to: to.copy_(self._tensor(message))
        if way == "pinned":
            return lambda message, to: to.copy_(self._tensor(message), non_blocking=True)
        if way == "helped":
            return lambda lease, _: lease.to_device()
        staging = self.torch.empty(nbytes, dtype=self.torch.uint8, pin_memory=True)

        def staged(message: Any, to: Any) -> None:
            staging.copy_(self._tensor(message))
            to.copy_(staging, non_blocking=True)
            self.torch.cuda.current_stream().synchronize()

        return staged

    def run(self, way: str, nbytes: int, seconds: float) -> Sample:
        """Copy what is leased, again and again; the figure is GB/s."""
        count = TOTAL // nbytes
        with (
            self.ring.consumer(unique_name(), start="latest", ephemeral=True) as inp,
            self.ring.producer() as out,
        ):
            for _ in range(count):
                out.push(bytes(range(256)) * (nbytes // 256))
            if way == "helped":
                with contextlib.ExitStack() as held:
                    leases = [held.enter_context(inp.lease()) for _ in range(min(count, LEASES))]
                    return self._measure(way, nbytes, leases, seconds)
            with inp.lease_many(count) as batch:
                return self._measure(way, nbytes, list(batch), seconds)

    def _measure(self, way: str, nbytes: int, messages: list[Any], seconds: float) -> Sample:
        cuda = self.torch.cuda
        to = self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")
        copy = self._way(way, nbytes)
        begun = time.perf_counter()
        with self.ring.pin() if way in ("pinned", "helped") else contextlib.nullcontext():
            pinned = time.perf_counter() - begun
            copy(messages[0], to)
            cuda.synchronize()
            copied, begun, cpu = 0, time.perf_counter(), time.process_time()
            while time.perf_counter() - begun < seconds:
                for message in messages:
                    copy(message, to)
                copied += len(messages) * nbytes
                cuda.synchronize()
            took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        also = {"CPU s a GB": cpu * 1e9 / copied}
        if way in ("pinned", "helped"):
            also["s to pin"] = pinned
        return Sample(copied / took / 1e9, also)


def question(settings: Settings) -> Question:
    """Three sizes of messages, each in all ways."""
    del settings
    bench = _Bench()
    rows = [
        Row(
            f"{size}, {name}",
            "GB/s",
            partial(bench.run, way, nbytes),
            compare=() if way == "pageable" else (f"{size}, as it is (pageable)",),
        )
        for size, nbytes in SIZES.items()
        for name, way in WAYS.items()
    ]
    title = "How fast do leased messages come to a GPU?"
    return Question("gpu", title, rows, setup=bench.ready)
