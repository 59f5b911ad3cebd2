"""Several requests as one batch: which ones, how they are worked on, how the answer is split.

If that goes wrong each is worked on alone, and so is what a worker has died over: only the request
that is the cause is to fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from shmring.arrow.batches import Piece
from shmring.errors import RingNotFound, ShmringError
from shmring.sidecars.answers import Answers
from shmring.sidecars.batching import Batching, WrongRows
from shmring.sidecars.calls import Calls, is_group
from shmring.sidecars.combining import joined
from shmring.sidecars.heartbeat import Heartbeat, Request


@dataclass(slots=True)
class _Gathered(Request):
    """One that waits for others; its batch lies in the ring."""

    batch: pa.RecordBatch


class Gathering:
    """Requests that wait for others."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._requests: list[_Gathered] = []
        self._rows = 0
        self._due = 0.0

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def is_full(self) -> bool:
        return self._rows >= self._batching.rows

    @property
    def left(self) -> float:
        """Seconds that the requests may still wait."""
        return max(0.0, self._due - time.monotonic())

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether the batch can be joined to what is here."""
        if not self._requests:
            return True
        return (
            batch.num_columns > 0
            and self._rows + batch.num_rows <= self._batching.rows
            # Their clients want answers of one type, too: the metadata tells.
            and batch.schema.equals(self._requests[0].batch.schema, check_metadata=True)
        )

    def add(self, request: _Gathered) -> None:
        if not self._requests:
            self._due = time.monotonic() + self._batching.wait
        self._requests.append(request)
        self._rows += request.batch.num_rows

    def take(self) -> list[_Gathered]:
        """All of them; they wait no longer."""
        taken, self._requests, self._rows = self._requests, [], 0
        return taken


def split(parts: Sequence[pa.RecordBatch], rows: Sequence[int]) -> list[list[pa.RecordBatch]]:
    """An answer, cut into so many rows each; there is at least one."""
    table = pa.Table.from_batches(parts)
    first = 0
    cut: list[list[pa.RecordBatch]] = []
    for count in rows:
        cut.append(table.slice(first, count).to_batches() or [parts[0].slice(0, 0)])
        first += count
    return cut


class Joint:
    """The requests of a worker whose function takes several together."""

    def __init__(self, answers: Answers, batching: Batching) -> None:
        self._answers = answers
        self._gathering = Gathering(batching)

    @property
    def left(self) -> float:
        """Seconds that those may still wait that are here; infinite if nobody is."""
        return self._gathering.left if self._gathering else float("inf")

    def take(self, request: Request) -> None:
        """Let a request wait for others, or work on it."""
        batch = None if request.lease.redelivered else self._joinable(request)
        if batch is None:
            self.work()  # the others are not to die of this one, nor wait until there are no groups
            self._answers.work_on(request)
            return
        if not self._gathering.takes(batch):
            self.work()
        self._gathering.add(_Gathered(request.lease, request.head, request.client, batch))
        if self._gathering.is_full:
            self.work()

    def _joinable(self, request: Request) -> pa.RecordBatch | None:
        """Its batch, if that can be joined with others."""
        try:
            batch = self._answers.decode(request.lease, request.client)
        except ShmringError:
            return None  # its client is told by who works on it alone
        return None if is_group(batch) or 0 < request.head.rows < batch.num_rows else batch

    def work(self) -> None:
        """Work on what was gathered, as one batch; each request is answered by itself."""
        gathered = self._gathering.take()
        requests = [Request(each.lease, each.head, each.client) for each in gathered]
        batches = [each.batch for each in gathered]
        gathered.clear()
        rows = [batch.num_rows for batch in batches]
        begun, spent = time.perf_counter_ns(), 0
        cut: list[list[pa.RecordBatch]] | None = None
        wrong: WrongRows | None = None
        heartbeat = Heartbeat(requests, requests)
        try:
            if len(batches) > 1:
                cut = self._as_one(batches, heartbeat)
                spent = time.perf_counter_ns() - begun
        except WrongRows as error:
            wrong = error
        except BaseException:  # one request's fault, perhaps; sys.exit() in the function too
            pass
        batches.clear()
        for number, (request, count) in enumerate(zip(requests, rows, strict=True)):
            with suppress(RingNotFound):  # work that raised had no beat at its end
                heartbeat.beat()
            share = spent * count // max(1, sum(rows))
            if cut is None and len(requests) > 1 and request.client.is_gone():
                request.lease.release()
            elif wrong is not None:
                self._answers.publish(request, map(_raise, [wrong]))
            elif cut is not None:
                pieces = self._answers.pieces(request, cut[number])
                self._answers.publish(request, pieces, share)
            else:
                self._answers.work_on(request, requests[number + 1 :])

    def _as_one(
        self, batches: list[pa.RecordBatch], heartbeat: Heartbeat
    ) -> list[list[pa.RecordBatch]]:
        rows = [batch.num_rows for batch in batches]
        calls, batch = Calls.of(joined(batches))
        given = [batch] if calls is None else calls.arguments(batch)
        answers: Iterator[pa.RecordBatch | None] = self._answers.answers_to(given, calls)
        return split([part for part in heartbeat.of(answers) if part is not None], rows)


def _raise(error: Exception) -> Piece:
    raise error
