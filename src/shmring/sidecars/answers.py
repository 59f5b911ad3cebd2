"""Makes the answers to requests, and publishes each answer when its client's ring has room.

The worker's common case, one batch for one batch, is in worker.py. This module makes all other
answers: answers in several pieces, and answers for slices, UDFs and groups. Each answer is a
generator of messages, which goes on when the client's ring has room; meanwhile the worker serves
other clients. Between its steps an answer sends signs of life to clients, and checks that a client
still waits.
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
from shmring.arrow.batches import (
    BatchEncoder,
    Known,
    Piece,
    batches_of,
    decode_batch,
    learned,
    most_bytes,
)
from shmring.common.arguments import KIND_ARROW_STREAM
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

# Seconds between signs of life to a client; also the longest time in seconds that answers wait to
# be joined with others.
INTERVAL = 0.1
LOOK = 0.2  # seconds between checks that the parent and the clients still live

_TRACEBACK_BYTES = 32_768

Item = TypeVar("Item")
# A function that publishes one message, or raises Full without waiting.
Push = Callable[[], int]


class ServedClient:
    """A client's reply ring, and the requests whose answers do not fit into that ring yet.

    The number of such requests is at most the client's limit of requests in flight.
    """

    def __init__(self, name: str, behind: set[ServedClient]) -> None:
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
        self._requests: deque[ServedRequest] = deque()

    @property
    def is_behind(self) -> bool:
        return bool(self._requests)

    def encoder_for(self, batch: pa.RecordBatch) -> BatchEncoder:
        encoder = self._encoder
        if encoder is None or not batch.schema.equals(encoder.schema, check_metadata=True):
            encoder = self._encoder = BatchEncoder(batch.schema)
        return encoder

    def push_within(self, most: int, answer: pa.RecordBatch, head: bytes) -> bool:
        """Publish the answer; return False if it has over `most` bytes, or the ring has no room."""
        most = min(most, self.most)
        push = self.encoder_for(answer).push_within
        try:
            found = push(most, self.producer, answer, prefix=head, kind=KIND_REPLY, timeout=0)
        except Full:
            return False
        return found is not None

    def add(self, request: ServedRequest) -> None:
        self._requests.append(request)
        self._behind.add(self)
        self.work()

    def work(self) -> bool:
        """Publish messages while the ring has room; return True if no request is left."""
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
class ServedRequest:
    """A client's request; it holds its slots of the ring until it is answered."""

    lease: shmring.Lease
    head: Head
    client: ServedClient
    # Number of the function's batches in this request, from which batches_wanted() computes the
    # number for the next request; 0 before they are counted.
    batches: int = field(default=0, init=False)
    # Number of empty pieces sent before the answer, as signs of life.
    signs: int = field(default=0, init=False)
    # Slots that a reply ring needs for the answer's largest row, if that row does not fit the
    # client's reply ring; else 0.
    slots: int = field(default=0, init=False)
    answering: bool = field(default=False, init=False)  # True once pieces of the answer are made
    _pushes: Generator[Push] = field(init=False)  # functions that publish the answer's messages
    _next: Push | None = field(default=None, init=False)

    def answer(self, pushes: Generator[Push]) -> None:
        """Publish the messages of the answer, each when the client's reply ring has room."""
        self._pushes = pushes
        self.client.add(self)

    # CHANGE: edit this for a new field of a request
    def work(self) -> bool:
        """Publish messages while the ring has room; return True if the answer is complete."""
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
                # Release the request without an answer if the error cannot be sent to the client.
                except ShmringError:
                    self.lease.release()
                    return True

    def drop(self) -> None:
        self._pushes.close()
        self._next = None
        self.lease.release()

    def push(self, head: bytes, piece: Piece | None) -> Push:
        """Return a function that publishes `head` (a header) and, if given, a piece after it."""
        client = self.client
        if piece is None:
            return partial(client.producer.push, head, kind=KIND_REPLY, timeout=0)
        push = client.encoder_for(piece[0]).push
        return partial(push, client.producer, *piece, prefix=head, kind=KIND_REPLY, timeout=0)

    def failure(self, text: str) -> Push:
        """Return a function that tells the client that the request failed, with an error's text."""
        body = text.encode(errors="backslashreplace")[-_TRACEBACK_BYTES:]
        larger = FLAG_LARGER if self.slots else 0
        head = self.head.answer(0, FLAG_ERROR | FLAG_LAST | larger, batches=self.slots)
        return self.push(head + body, None)

    def sign(self) -> None:
        """Send a sign of life to a client that has no piece of its answer yet."""
        # After the answer has begun, Answers._pushes() sends the signs. A client that is behind
        # needs no sign, because its unread messages show that the worker lives.
        if self.answering or self.client.is_behind:
            return
        with suppress(ShmringError):
            self.push(self.head.answer(self.signs, 0), None)()
            self.signs += 1


class Heartbeat:
    """Sends signs of life while the worker works, and ends work that no client waits for.

    The work ends when the clients of all `wanted` requests are gone. The `waiting` requests have no
    piece of an answer yet, and later work may answer them: their clients get signs of life.
    """

    def __init__(
        self, wanted: Iterable[ServedRequest], waiting: Iterable[ServedRequest] = ()
    ) -> None:
        self._clients = [each.client for each in wanted]
        self._waiting = list(waiting)
        self._said = self._looked = time.monotonic()

    def of(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and call beat() after each; beat() raises if all clients are gone."""
        for item in items:
            yield item
            self.beat()

    def beat(self) -> None:
        """Send signs of life and check clients, if it is time.

        Raises RingNotFound if all clients are gone.
        """
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
    """Works on requests for a Worker, and publishes their answers.

    Errors name the function (`target`), the sidecar and its ring.
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

    def decode(self, lease: shmring.Lease, client: ServedClient) -> pa.RecordBatch:
        """Return a request's batch, in the ring's memory; raise Damaged if it has no batch."""
        known = client.known
        batch = known and known.map(lease, KIND_ARROW_STREAM, skip=HEAD_BYTES)
        if batch is None:
            message = pa.py_buffer(lease).slice(HEAD_BYTES)
            batch = decode_batch(message, None, ring=self._ring, message_id=lease.message_id)
            client.known = learned(message)
        return batch

    def work_on(
        self,
        request: ServedRequest,
        waiting: Iterable[ServedRequest] = (),
        *,
        batch: pa.RecordBatch | None = None,
        spent: int = 0,
    ) -> None:
        """Work on one request of any form, without joining it to others.

        The clients of the `waiting` requests get signs of life meanwhile. `batch` is the request's,
        if it is decoded already, and `spent` the nanoseconds already spent on the request.
        """
        heartbeat = Heartbeat([request], waiting)
        self.publish(request, self._worked_on(request, heartbeat, batch), spent)

    def go_on(self, request: ServedRequest, result: Any, spent: int) -> None:
        """Answer with the function's result, in as many pieces as necessary."""
        request.batches = 1
        batches = Heartbeat([request]).of(batches_from(result, self._target))
        self.publish(request, self.pieces(request, batches), spent)

    def fail(self, request: ServedRequest, text: str) -> None:
        """Tell the client that the function raised an error; `text` is its traceback."""
        request.answer(push for push in [request.failure(text)])

    def publish(
        self, request: ServedRequest, pieces: Iterator[Piece | None], spent: int = 0
    ) -> None:
        """Publish the pieces of an answer; `spent` nanoseconds were spent on it before.

        Pieces are made when the ring has room for them. A None among them marks a point where a
        sign of life may be sent.
        """
        request.answer(self._pushes(request, pieces, spent))

    def _pushes(
        self, request: ServedRequest, pieces: Iterator[Piece | None], spent: int
    ) -> Generator[Push]:
        head, push = request.head, request.push
        request.answering = True
        number = request.signs
        worked = nbytes = 0
        under_way: Piece | None = None
        held: Piece | None = None  # piece kept until it is known whether it is the last one
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
                # Publish the held piece. If no piece is held, publish an empty piece, which tells
                # the client that the worker lives.
                under_way, held = held, piece
                worked += (spent := time.perf_counter_ns() - begun)
                yield push(head.answer(number, 0, spent), under_way)
                under_way = None
                number += 1
                said, begun = time.monotonic(), time.perf_counter_ns()
            worked += (spent := time.perf_counter_ns() - begun)
            batches = batches_wanted(request.batches, worked, nbytes) if request.batches else 0
            # A redelivered request may have killed a worker because it had too many batches: ask
            # the client for requests of one batch.
            if request.lease.redelivered:
                batches = min(batches, 1)
            under_way, held = held, None
            yield push(head.answer(number, FLAG_LAST, spent, batches), under_way)
        except GeneratorExit:
            raise
        except BaseException as error:  # includes sys.exit() in the user's function
            failed = request.failure(told(error))
        # Yield outside of the handler: inside, the error, and the request that its frames hold,
        # would stay in memory until the generator goes on.
        if failed is not None:
            if held is not None and under_way is None:  # publish the last result before the error
                with suppress(ShmringError):
                    yield push(head.answer(number, 0), held)
            yield failed

    # CHANGE: edit this for a new field of a request
    def _worked_on(
        self, request: ServedRequest, heartbeat: Heartbeat, batch: pa.RecordBatch | None
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
        request: ServedRequest,
        heartbeat: Heartbeat,
    ) -> Iterator[pa.RecordBatch | None]:
        """Yield the answers to a request's slices; a None follows the answers to each slice."""
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
        """Yield the answers to a slice; `given` has a batch of arguments for each of the calls.

        If `calls` is None, the function is called once, and `given` has one batch.
        """
        if calls is not None:
            yield from self._results(given, calls)
            return
        (batch,) = given
        # Number of rows that the answer must have; None for any number, as in answers to a group.
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
        """Yield the joint answer of all calls; each None before it allows a sign of life."""
        results: list[list[Any]] = []
        for number, (batch, call) in enumerate(zip(given, calls.each, strict=True), 1):
            result: list[Any] = []
            try:
                for answer in batches_from(self._function(batch), self._target):
                    if results or result:
                        yield None  # lets the caller send the client a sign of life
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
        self, request: ServedRequest, batches: Iterable[pa.RecordBatch | None]
    ) -> Iterator[Piece | None]:
        """Cut batches into pieces that fit the client's ring; pass on each None among them.

        Raises MessageTooLarge if a row does not fit.
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


def together(answers: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch | None]:
    """Join successive answers of one schema to one batch; pass on each None, which ends a slice.

    If the next answer raises an error, the answers before it are yielded first.
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
            # answer.nbytes crashes if the answer has an empty inner map without offsets.
            nbytes += pa.ipc.get_record_batch_size(answer)
            if nbytes >= MOST_BYTES:
                yield from as_one(held)
                held, nbytes, since = [], 0, time.monotonic()
    except GeneratorExit:
        raise
    except BaseException:  # includes sys.exit() in the user's function
        yield from as_one(held)
        raise
    yield from as_one(held)


def batches_from(result: Any, target: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a function's result; raise TypeError if some of it is no Arrow data."""
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
