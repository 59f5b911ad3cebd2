"""Answers that take more than the worker's common case: several pieces, slices, UDFs, groups.

Each is a generator of messages, which goes on as there is room for them in the client's ring.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar, cast

import pyarrow as pa

import shmring
from shmring.arrow.batches import Piece, batches_of, decode_batch
from shmring.arrow.known import learned
from shmring.choices import KIND_ARROW_STREAM
from shmring.errors import MessageTooLarge, ShmringError
from shmring.sidecars.calls import Calls, arguments, is_group
from shmring.sidecars.functions import Batching, Function, WrongRows, raised
from shmring.sidecars.outbox import INTERVAL, Client, Heartbeat, Job, Push, Request
from shmring.sidecars.rings import REPLY
from shmring.sidecars.slices import batches_wanted, in_turn, slices, together
from shmring.sidecars.wire import (
    FLAG_AGAIN,
    FLAG_ERROR,
    FLAG_LARGER,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REPLY,
)

Item = TypeVar("Item")

_TRACEBACK_BYTES = 32_768


def _failure(request: Request, error: BaseException) -> Push:
    """How a client is told that its request has failed."""
    text = raised(error).encode(errors="backslashreplace")[-_TRACEBACK_BYTES:]
    larger = FLAG_LARGER if request.slots else 0
    head = request.head.answer(0, FLAG_ERROR | FLAG_LAST | larger, batches=request.slots)
    return request.push(head, text)


class Answers:
    """Works on requests, and lets their clients publish what comes of it.

    Parameters
    ----------
    function : as for a Worker
    target, sidecar, ring : the function, its sidecar and that one's ring, in errors
    batching : how many requests are worked on at a time; None: each alone
    """

    def __init__(
        self,
        function: Function,
        target: str,
        sidecar: str,
        ring: str,
        batching: Batching | None = None,
    ) -> None:
        self._function = function
        self._target = target
        self._described = f'{target} of sidecar "{sidecar}"'
        self._ring = ring
        self._batching = batching

    def decode(self, lease: shmring.Lease, client: Client) -> pa.RecordBatch:
        """The batch of a client's request, where it lies.

        Raises
        ------
        Damaged : it is none
        """
        known = client.known
        batch = known and known.map(lease, KIND_ARROW_STREAM, skip=HEAD_BYTES)
        if batch is None:
            message = pa.py_buffer(lease).slice(HEAD_BYTES)
            batch = decode_batch(message, None, ring=self._ring, message_id=lease.message_id)
            client.known = learned(message)
        return batch

    def work_on(
        self,
        request: Request,
        waiting: Iterable[Request] = (),
        *,
        batch: pa.RecordBatch | None = None,
        spent: int = 0,
    ) -> None:
        """Work on a request of any form, alone.

        Parameters
        ----------
        waiting : requests whose clients hear nothing else meanwhile
        batch, spent : the request's batch, if it was decoded, and how long that took
        """
        heartbeat = Heartbeat([request], waiting)
        self.publish(request, self._worked_on(request, heartbeat, batch), spent)

    def go_on(self, request: Request, result: Any, spent: int) -> None:
        """Answer with what the function returned, in as many pieces as that takes."""
        request.batches = 1
        batches = Heartbeat([request]).of(batches_from(result, self._target))
        self.publish(request, self.pieces(request, batches), spent)

    def fail(self, request: Request, error: BaseException) -> None:
        """Tell the client what the function has raised."""
        request.client.add(Job(request.lease, _told(_failure(request, error), request)))

    def publish(self, request: Request, pieces: Iterator[Piece | None], spent: int = 0) -> None:
        """Let the client have the pieces of an answer.

        Parameters
        ----------
        pieces : None is where there may be time for a sign of life
        spent : nanoseconds that went into them before
        """
        request.client.add(Job(request.lease, self._pushes(request, _Timed(pieces, spent))))

    def _pushes(self, request: Request, pieces: _Timed[Piece | None]) -> Generator[Push]:
        client, head, push = request.client, request.head, request.push

        request.answering = True
        number = request.signs
        worked = nbytes = 0
        said = time.monotonic()
        before: Piece | None = None
        held: Piece | None = None  # until it is known whether it is the last
        try:
            if request.lease.redelivered:
                yield push(head.answer(0, FLAG_AGAIN))
            for piece in pieces:
                if piece is not None:
                    nbytes += piece[1]
                    before, held = held, piece
                elif time.monotonic() - said > INTERVAL:
                    before, held = held, None
                    if before is None:  # nothing but a sign of life
                        yield push(head.answer(number, 0))
                        number += 1
                        said = time.monotonic()
                if before is not None:
                    worked += (spent := pieces.spent())
                    yield _push_batch(client, head.answer(number, 0, spent), *before)
                    before = None
                    number += 1
                    said = time.monotonic()
            worked += (spent := pieces.spent())
            batches = batches_wanted(request.batches, worked, nbytes) if request.batches else 0
            if request.lease.redelivered:  # a worker has died over several, perhaps
                batches = min(batches, 1)
            last = head.answer(number, FLAG_LAST, spent, batches)
            before, held = held, None
            yield push(last) if before is None else _push_batch(client, last, *before)
        except GeneratorExit:
            raise
        except BaseException as error:  # sys.exit() in the user's function too
            failed = _failure(request, error)
            if held is not None and before is None:  # what came before the error goes before it
                with suppress(ShmringError):
                    yield _push_batch(client, head.answer(number, 0), *held)
            yield failed

    def _worked_on(
        self, request: Request, heartbeat: Heartbeat, batch: pa.RecordBatch | None
    ) -> Iterator[Piece | None]:
        calls, batch = Calls.of(
            self.decode(request.lease, request.client) if batch is None else batch
        )
        given = [batch] if calls is None else calls.arguments(batch)
        parts = list(zip(*(slices(each, request.head.rows) for each in given), strict=True))
        if self._batching is None:
            request.batches = len(parts)
        del batch, given
        answers: Iterable[pa.RecordBatch | None]
        if len(parts) == 1:
            answers = heartbeat.of(self.answers_to(parts.pop(), calls))
        else:
            each = (self.answers_to(part, calls) for part in parts)
            answers = together(in_turn(each, len(parts), request, heartbeat))
        try:
            yield from self.pieces(request, answers)
        except MessageTooLarge as error:
            if calls is not None and len(calls.each) > 1:
                error.add_note(calls.remedy)
            raise

    def answers_to(
        self, given: Sequence[pa.RecordBatch], calls: Calls | None
    ) -> Iterator[pa.RecordBatch | None]:
        """What comes of a slice, of which each call is given its arguments."""
        if calls is not None:
            yield from calls.results(given, self._called, self._check_rows, self._described)
            return
        (batch,) = given
        rows = batch.num_rows
        batching = None if is_group(batch) else self._batching
        result = self._function(*arguments(batch))
        del batch, given
        answered = 0
        for answer in batches_from(result, self._target):
            answered += answer.num_rows
            yield answer
        if batching is not None:
            batching.check(self._target, rows, answered)

    def _called(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return batches_from(self._function(batch), self._target)

    def _check_rows(self, rows: int, answered: int) -> None:
        if self._batching is not None:
            self._batching.check(self._target, rows, answered)
        elif answered != rows:
            raise WrongRows(
                f"{self._described} answered with another number of rows than a UDF must: "
                f"expected {rows}, got {answered}"
            )

    def pieces(
        self, request: Request, batches: Iterable[pa.RecordBatch | None]
    ) -> Iterator[Piece | None]:
        """Each batch in pieces that the client's ring takes.

        Raises
        ------
        MessageTooLarge : a row does not fit
        """
        client = request.client
        for batch in batches:
            if batch is None:
                yield None
                continue
            try:
                yield from client.encoder_for(batch).pieces(
                    batch,
                    client.slots,
                    ring=client.ring.path,
                    prefix=HEAD_BYTES,
                    remedy=REPLY.remedy,
                )
            except MessageTooLarge as error:
                request.slots = error.slots
                raise


def _told(push: Push, request: Request) -> Generator[Push]:
    try:
        yield push
    except ShmringError as error:
        yield _failure(request, error)


def _push_batch(client: Client, head: bytes, *piece: *Piece) -> Push:
    return partial(
        client.encoder_for(piece[0]).push,
        client.producer,
        *piece,
        prefix=head,
        kind=KIND_REPLY,
        timeout=0,
    )


class _Timed(Generic[Item]):
    """An iterator that counts how long its items took to make.

    Parameters
    ----------
    items : made as they are asked for
    spent : nanoseconds that went into them before
    """

    def __init__(self, items: Iterator[Item], spent: int = 0) -> None:
        self._items = items
        self._spent = spent

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        begun = time.perf_counter_ns()
        try:
            return next(self._items)
        finally:
            self._spent += time.perf_counter_ns() - begun

    def spent(self) -> int:
        """Nanoseconds since this was called last."""
        spent, self._spent = self._spent, 0
        return spent


def batches_from(result: Any, target: str) -> Iterator[pa.RecordBatch]:
    """The batches of what the function returned, one after the other.

    Raises
    ------
    TypeError : some of it is no Arrow data
    """
    parts = cast("Iterator[Any]", result) if isinstance(result, Iterator) else iter((result,))
    for part in parts:
        if part is None:
            raise TypeError(
                f"{target} returned None, not Arrow data: return the batch, or to answer "
                f"with no rows an empty one (batch.slice(0, 0))"
            )
        try:
            _, batches = batches_of(part)
        except TypeError as error:
            raise TypeError(f"what {target} returned cannot be sent: {error}") from None
        yield from batches
