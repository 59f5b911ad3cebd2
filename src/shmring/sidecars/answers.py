"""Answers: what a worker makes of requests, and publishes as their clients have room for it.

The worker's common case, one batch for one batch, is worker.py's own. Here is what takes more:
an answer in several pieces, slices, UDFs, groups. It is a generator of messages, which goes on as
there is room for them in the client's ring; the worker goes on with the other clients meanwhile.
Between its steps it says that it lives, and asks whether somebody waits still.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import pyarrow as pa

import shmring
from shmring.arguments import KIND_ARROW_STREAM
from shmring.arrow.batches import (
    BatchEncoder,
    Known,
    Piece,
    batches_of,
    decode_batch,
    learned,
    most_bytes,
)
from shmring.errors import Full, MessageTooLarge, RingNotFound, ShmringError
from shmring.sidecars.batches import MOST_BYTES, Unchanged, as_one, batches_wanted, slices
from shmring.sidecars.calls import Calls, arguments, is_group
from shmring.sidecars.functions import Batching, Function, WrongRows, told
from shmring.sidecars.rings import REPLY
from shmring.sidecars.wire import (
    FLAG_AGAIN,
    FLAG_ERROR,
    FLAG_LARGER,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REPLY,
    Head,
)

# Seconds after which a client is to see that something happens: answers that have waited for others
# for so long wait no longer.
INTERVAL = 0.1
LOOK = 0.2  # seconds between looks at the parent and at clients that may be gone

_TRACEBACK_BYTES = 32_768

Item = TypeVar("Item")
# Publishes one message, or raises Full at once.
Push = Callable[[], int]


class Client:
    """A reply ring, and the requests whose answers do not fit into it yet.

    A client bounds these by its requests in flight.
    """

    def __init__(self, name: str, behind: set[Client]) -> None:
        self.name = name
        self.ring = shmring.attach(name)
        try:
            self.producer = self.ring.producer("worker")
        except BaseException:
            self.ring.close()
            raise
        self.slots = self.ring.slots
        self.known: Known | None = None
        self.unchanged = Unchanged()
        self.most = most_bytes(self.slots)
        self._encoder: BatchEncoder | None = None
        self._behind = behind
        self._requests: deque[Request] = deque()

    @property
    def is_behind(self) -> bool:
        return bool(self._requests)

    def encoder_for(self, batch: pa.RecordBatch) -> BatchEncoder:
        encoder = self._encoder
        if encoder is None or not batch.schema.equals(encoder.schema, check_metadata=True):
            encoder = self._encoder = BatchEncoder(batch.schema)
        return encoder

    def push_within(self, most: int, answer: pa.RecordBatch, head: bytes) -> bool:
        """Publish an answer that has at most so many bytes and finds room; whether it does."""
        most = min(most, self.most)
        push = self.encoder_for(answer).push_within
        try:
            found = push(most, self.producer, answer, prefix=head, kind=KIND_REPLY, timeout=0)
        except Full:
            return False
        return found is not None

    def add(self, request: Request) -> None:
        self._requests.append(request)
        self._behind.add(self)
        self.work()

    def work(self) -> bool:
        """Publish what fits; whether that was all."""
        while self._requests and self._requests[0].work():
            self._requests.popleft()
        if not self._requests:
            self._behind.discard(self)
        return not self._requests

    def is_gone(self) -> bool:
        return (
            self.ring.closed
            or not os.path.exists(self.ring.path)
            or not any(
                participant["alive"] and participant["role"] == "consumer"
                for participant in self.ring.participants()
            )
        )

    def close(self) -> None:
        for request in self._requests:
            request.drop()
        self._requests.clear()
        self._behind.discard(self)
        self.producer.close()
        self.ring.close()


@dataclass(slots=True, eq=False)
class Request:
    """What a client asks; it holds its place in the ring until it is answered."""

    lease: shmring.Lease
    head: Head
    client: Client
    # That it had; 0: it is not known yet, or of no interest.
    batches: int = field(default=0, init=False)
    # Pieces before the answer that have nothing to say but that the worker lives.
    signs: int = field(default=0, init=False)
    # Of the reply ring, for a row of the answer that its one does not take.
    slots: int = field(default=0, init=False)
    answering: bool = field(default=False, init=False)  # the pieces that come now are its own
    _pushes: Generator[Push] = field(init=False)  # the answer, made as room for it comes
    _next: Push | None = field(default=None, init=False)

    def answer(self, pushes: Generator[Push]) -> None:
        """Publish these as there is room for them."""
        self._pushes = pushes
        self.client.add(self)

    def work(self) -> bool:
        """Publish what fits; whether that was all."""
        while True:
            if self._next is None:
                self._next = next(self._pushes, None)
                if self._next is None:
                    self.lease.release()
                    return True
            try:
                self._next()
                self._next = None
            except Full:
                return False
            except ShmringError as error:
                try:
                    self._next = self._pushes.throw(error)
                except ShmringError:  # not even that can be told
                    self.lease.release()
                    return True

    def drop(self) -> None:
        self._pushes.close()
        self._next = None
        self.lease.release()

    def push(self, head: bytes, piece: Piece | None) -> Push:
        """How a piece of the answer, or none but its head, is published."""
        client = self.client
        if piece is None:
            return partial(client.producer.push, head, kind=KIND_REPLY, timeout=0)
        push = client.encoder_for(piece[0]).push
        return partial(push, client.producer, *piece, prefix=head, kind=KIND_REPLY, timeout=0)

    def failure(self, text: str) -> Push:
        """How the client is told, by the text of an error, that the request has failed."""
        body = text.encode(errors="backslashreplace")[-_TRACEBACK_BYTES:]
        larger = FLAG_LARGER if self.slots else 0
        head = self.head.answer(0, FLAG_ERROR | FLAG_LAST | larger, batches=self.slots)
        return self.push(head + body, None)

    def sign(self) -> None:
        """Tell a client that has nothing of the answer that something happens."""
        if self.answering or self.client.is_behind:  # which sees it by what it has to read
            return
        with suppress(ShmringError):
            self.push(self.head.answer(self.signs, 0), None)()
            self.signs += 1


class Heartbeat:
    """The beat of some work for some requests; clients of those that wait hear nothing else of it.

    The work ends when the clients of all requests that it is for are gone.
    """

    def __init__(self, wanted: Iterable[Request], waiting: Iterable[Request] = ()) -> None:
        self._clients = [each.client for each in wanted]
        self._waiting = list(waiting)
        self._said = self._looked = time.monotonic()

    def of(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a beat after each; RingNotFound when nobody wants the rest."""
        for item in items:
            yield item
            self.beat()

    def beat(self) -> None:
        """See to both, if it is time to; RingNotFound when nobody wants the rest."""
        now = time.monotonic()
        if now - self._said > INTERVAL:
            for request in self._waiting:
                request.sign()
            self._said = now
        if now - self._looked > LOOK:
            self._looked = now
            if all(client.is_gone() for client in self._clients):
                raise RingNotFound(f'ring "{self._clients[0].ring.path}": its client is gone')


class Answers:
    """Works on requests, as a Worker does, and lets their clients publish what comes of it.

    Errors name `target`, the function, its sidecar and that one's ring.
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
        """The batch of a client's request, where it lies; Damaged if it is none."""
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
        """Work on a request of any form, alone; its batch, if it was decoded, took so long.

        The clients of those that are waiting hear nothing else meanwhile.
        """
        heartbeat = Heartbeat([request], waiting)
        self.publish(request, self._worked_on(request, heartbeat, batch), spent)

    def go_on(self, request: Request, result: Any, spent: int) -> None:
        """Answer with what the function returned, in as many pieces as that takes."""
        request.batches = 1
        batches = Heartbeat([request]).of(batches_from(result, self._target))
        self.publish(request, self.pieces(request, batches), spent)

    def fail(self, request: Request, text: str) -> None:
        """Tell the client what the function has raised, as told() has it."""
        request.answer(push for push in [request.failure(text)])

    def publish(self, request: Request, pieces: Iterator[Piece | None], spent: int = 0) -> None:
        """Let the client have the pieces of an answer, into which so many ns have gone before.

        They are made as they are asked for; None is where there may be time for a sign of life.
        """
        request.answer(self._pushes(request, pieces, spent))

    def _pushes(
        self, request: Request, pieces: Iterator[Piece | None], spent: int
    ) -> Generator[Push]:
        head, push = request.head, request.push
        request.answering = True
        number = request.signs
        worked = nbytes = 0
        under_way: Piece | None = None
        held: Piece | None = None  # until it is known whether it is the last
        failed: Push | None = None
        try:
            if request.lease.redelivered:
                yield push(head.answer(0, FLAG_AGAIN), None)
            said, begun = time.monotonic(), time.perf_counter_ns() - spent
            for piece in pieces:
                if piece is not None:
                    nbytes += piece[1]
                    if held is None:
                        held = piece
                        continue
                elif time.monotonic() - said <= INTERVAL:
                    continue
                under_way, held = held, piece  # with nothing under way: a sign of life
                worked += (spent := time.perf_counter_ns() - begun)
                yield push(head.answer(number, 0, spent), under_way)
                under_way = None
                number += 1
                said, begun = time.monotonic(), time.perf_counter_ns()
            worked += (spent := time.perf_counter_ns() - begun)
            batches = batches_wanted(request.batches, worked, nbytes) if request.batches else 0
            if request.lease.redelivered:  # a worker has died over several, perhaps
                batches = min(batches, 1)
            under_way, held = held, None
            yield push(head.answer(number, FLAG_LAST, spent, batches), under_way)
        except GeneratorExit:
            raise
        except BaseException as error:  # sys.exit() in the user's function too
            failed = request.failure(told(error))
        if failed is not None:  # not in the handler, which would hold the error while it waits
            if held is not None and under_way is None:  # what came before the error
                with suppress(ShmringError):
                    yield push(head.answer(number, 0), held)
            yield failed

    # CHANGE: a new field of a request
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
        if len(parts) == 1:
            answers = heartbeat.of(self.answers_to(parts.pop(), calls))
        else:
            answers = together(self._in_turn(parts, calls, request, heartbeat))
        try:
            yield from self.pieces(request, answers)
        except MessageTooLarge as error:
            if calls is not None and len(calls.each) > 1:
                error.add_note(calls.remedy)
            raise

    def _in_turn(
        self,
        parts: Sequence[Sequence[pa.RecordBatch]],
        calls: Calls | None,
        request: Request,
        heartbeat: Heartbeat,
    ) -> Iterator[pa.RecordBatch | None]:
        """The answers to the slices of a request, those to each followed by None."""
        for number, part in enumerate(parts, 1):
            try:
                yield from heartbeat.of(self.answers_to(part, calls))
                yield None
                heartbeat.beat()
            except BaseException as error:
                whose = request.head.describe()
                error.add_note(f"in batch {number} of the {len(parts)} of {whose}")
                raise

    def answers_to(
        self, given: Sequence[pa.RecordBatch], calls: Calls | None
    ) -> Iterator[pa.RecordBatch | None]:
        """What comes of a slice, of which each call is given its arguments."""
        if calls is not None:
            yield from self._results(given, calls)
            return
        (batch,) = given
        # A group may be answered with any number of rows.
        rows = None if is_group(batch) or self._batching is None else batch.num_rows
        result = self._function(*arguments(batch))
        del batch, given
        answered = 0
        for answer in batches_from(result, self._target):
            answered += answer.num_rows
            yield answer
        if rows is not None:
            self._check_rows(rows, answered)

    def _results(
        self, given: Sequence[pa.RecordBatch], calls: Calls
    ) -> Iterator[pa.RecordBatch | None]:
        """The answer of all calls, or None where it takes longer: no part of it comes alone."""
        results: list[list[Any]] = []
        for number, (batch, call) in enumerate(zip(given, calls.each, strict=True), 1):
            result: list[Any] = []
            try:
                for answer in batches_from(self._function(batch), self._target):
                    if results or result:
                        yield None  # the client may have to see that something happens
                    result.append(call.result(answer, self._described))
                self._check_rows(batch.num_rows, sum(map(len, result)))
            except BaseException as error:
                if len(given) > 1:
                    error.add_note(calls.describe(number))
                raise
            results.append(result)
            if number < len(given):
                yield None
        yield from calls.beside(results)

    def _check_rows(self, rows: int, answered: int) -> None:
        if rows != answered:
            why = "a UDF must" if self._batching is None else "it must with max_batch_rows"
            raise WrongRows(
                f"{self._described} answered with another number of rows than {why}: expected "
                f"{rows}, got {answered}; it has to return one for each, in their order"
            )

    def pieces(
        self, request: Request, batches: Iterable[pa.RecordBatch | None]
    ) -> Iterator[Piece | None]:
        """Each batch in pieces that the client's ring takes; MessageTooLarge if a row is."""
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


def together(answers: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch | None]:
    """The answers, each run of one schema as one batch; None, which is a slice's end, stays.

    If one cannot be had, those before it come first.
    """
    held: list[pa.RecordBatch] = []
    nbytes = 0
    since = time.monotonic()
    try:
        for answer in answers:
            if answer is None:
                if held and time.monotonic() - since > INTERVAL:
                    yield from as_one(held)
                    held, nbytes, since = [], 0, time.monotonic()
                yield None
                continue
            if held and not answer.schema.equals(held[0].schema, check_metadata=True):
                yield from as_one(held)
                held, nbytes, since = [], 0, time.monotonic()
            held.append(answer)
            # Not answer.nbytes: it crashes at an inner map of no rows that came without offsets.
            nbytes += pa.ipc.get_record_batch_size(answer)
            if nbytes >= MOST_BYTES:
                yield from as_one(held)
                held, nbytes, since = [], 0, time.monotonic()
    except GeneratorExit:
        raise
    except BaseException:  # sys.exit() in the user's function too
        yield from as_one(held)
        raise
    yield from as_one(held)


def batches_from(result: Any, target: str) -> Iterator[pa.RecordBatch]:
    """The batches of what the function returned; TypeError if some of it is no Arrow data."""
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
