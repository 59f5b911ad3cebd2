"""Several requests as one batch: which ones, how they are worked on, how the answer is split.

If that goes wrong each is worked on alone, and so is what a worker has died over: only the request
that is the cause is to fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from shmring.arrow.batches import Piece
from shmring.errors import RingNotFound, ShmringError
from shmring.sidecars.answers import Answers
from shmring.sidecars.calls import Calls, is_group
from shmring.sidecars.functions import Batching, WrongRows
from shmring.sidecars.outbox import Heartbeat, Request
from shmring.sidecars.slices import joined


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
        self._batching = batching
        self._requests: list[Request] = []  # that wait for others
        self._batches: list[pa.RecordBatch] = []  # of each; they lie in the ring
        self._rows = 0
        self._due = 0.0

    @property
    def left(self) -> float:
        """Seconds that those may still wait that are here; infinite if nobody is."""
        return max(0.0, self._due - time.monotonic()) if self._requests else float("inf")

    def take(self, request: Request) -> None:
        """Let a request wait for others, or work on it."""
        batch = None if request.lease.redelivered else self._joinable(request)
        if batch is None:
            self.work()  # the others are not to die of this one, nor wait until there are no groups
            self._answers.work_on(request)
            return
        if self._requests and not self._fits(batch):
            self.work()
        if not self._requests:
            self._due = time.monotonic() + self._batching.wait
        self._requests.append(request)
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= self._batching.rows:
            self.work()

    def _fits(self, batch: pa.RecordBatch) -> bool:
        """Whether the batch can be joined to what is here."""
        return (
            batch.num_columns > 0
            and self._rows + batch.num_rows <= self._batching.rows
            # Their clients want answers of one type, too: the metadata tells.
            and batch.schema.equals(self._batches[0].schema, check_metadata=True)
        )

    def _joinable(self, request: Request) -> pa.RecordBatch | None:
        """Its batch, if that can be joined with others."""
        try:
            batch = self._answers.decode(request.lease, request.client)
        except ShmringError:
            return None  # its client is told by who works on it alone
        return None if is_group(batch) or 0 < request.head.rows < batch.num_rows else batch

    def work(self) -> None:
        """Work on what was gathered, as one batch; each request is answered by itself."""
        requests, self._requests = self._requests, []
        batches, self._batches = self._batches, []
        self._rows = 0
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
