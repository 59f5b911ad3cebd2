"""One worker of a sidecar: takes requests, calls the function, answers.

Run as ``python -m shmring.sidecars.worker``; the supervisor (server.py) does.
A request stays leased until its answer is published: should the worker die in
between, the request is delivered again to another one.

Where the function takes requests together, they wait for each other a little and
are worked on as one batch. If that goes wrong each is worked on alone, and so is
what a worker has died over: only the request that is the cause is to fail.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import pyarrow as pa

import shmring
from shmring.arguments import at_least_one
from shmring.arrow.batches import Piece, batches_of, decode_batch
from shmring.errors import (
    Empty,
    EndOfStream,
    LimitReached,
    MessageTooLarge,
    RingNotFound,
    ShmringError,
    TooManyLeases,
)
from shmring.names import REQUESTS
from shmring.sidecars.batching import Batching, WrongRows
from shmring.sidecars.calls import Calls
from shmring.sidecars.combining import joined
from shmring.sidecars.groups import arguments, is_group
from shmring.sidecars.heartbeat import INTERVAL, LOOK, Heartbeat, Request
from shmring.sidecars.joint import Gathering, split
from shmring.sidecars.outbox import Client, Job, Push
from shmring.sidecars.participants import LOADING
from shmring.sidecars.raised import raised
from shmring.sidecars.rings import remove_own, sweep
from shmring.sidecars.sizes import REPLY
from shmring.sidecars.slices import batches_wanted, slices, together
from shmring.sidecars.timed import Timed
from shmring.sidecars.wire import (
    FLAG_AGAIN,
    FLAG_ERROR,
    FLAG_LARGER,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REPLY,
    WORKERS_BRANCH,
    Head,
    request_ring_name,
)

__all__ = ["Worker", "load_function", "main"]

Function = Callable[..., Any]
Entry = TypeVar("Entry")

_FAREWELL = 5.0  # seconds that a worker told to stop waits for slow clients
_TRACEBACK_BYTES = 32_768


def load_function(target: str) -> Function:
    """The function that ``module:function`` names, ready to be called with each batch.

    Raises
    ------
    ValueError : no such function, or not callable
    """
    return _instantiated(find_function(target), target)


def find_function(target: str) -> Function | type:
    """What ``module:function`` names, a class as it is.

    Raises
    ------
    ValueError : there is no such name
    """
    import importlib

    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"a sidecar is named as module:function, not {target!r}")
    function: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise ValueError(f"module {module_name} has no {attribute}")
        function = getattr(function, part)
    return function


def _instantiated(function: Any, target: str) -> Function:
    """The instance of a class (one a worker: the place to load a model), or the function."""
    if isinstance(function, type):
        function = cast("Any", function)()
    if not callable(function):
        raise ValueError(f"{target} is not callable")
    return function


@dataclass(slots=True)
class _Gathered(Request):
    """One that waits for others; its batch lies in the ring."""

    batch: pa.RecordBatch


class Worker:
    """Serves requests of one sidecar until :meth:`stop` is called.

    The batch that the function gets lies in the sidecar's ring until it is
    collected: a function that keeps batches must copy them.

    Parameters
    ----------
    function : called with each RecordBatch, or with the two of a cogroup; returns Arrow data (a
        RecordBatch, a Table, anything with ``__arrow_c_stream__``) or an iterator of such
    target : what the function is called in errors
    ring : the sidecar's request ring; it is the worker's now
    parent : process id of the supervisor; the worker ends with it
    batching : how many requests are worked on at a time; None: each alone
    """

    def __init__(
        self,
        function: Function,
        target: str,
        ring: shmring.Ring,
        parent: int,
        batching: Batching | None = None,
    ) -> None:
        self._function = function
        self._target = target
        self._described = f'{target} of sidecar "{str(ring.name).removeprefix(REQUESTS)}"'
        self._parent = parent
        self._clients: dict[str, Client] = {}
        self._stopping = False
        self._batching = batching
        self._gathering = None if batching is None else Gathering[_Gathered](batching)
        self._ring = ring
        self._inbox = _await_entry(
            lambda: ring.consumer(WORKERS_BRANCH, start="earliest", name=target)
        )

    def stop(self) -> None:
        """Let :meth:`run` return after the request at hand."""
        self._stopping = True

    def run(self) -> None:
        """Serve; then leave, and let others have what could not be answered.

        After an exception nothing has been released: the process must end, so
        that others get its requests.
        """
        swept = time.monotonic()
        while not self._stopping and os.getppid() == self._parent:
            lease = self._next()
            if lease is not None:
                self._serve(lease)
            for client in self._clients.values():
                client.work()
            if time.monotonic() - swept > LOOK:
                swept = time.monotonic()
                self._sweep()
        self._serve_together()
        self._leave()

    def _next(self) -> shmring.Lease | None:
        """The next request, if one comes before there is something else to do."""
        behind = any(client.is_behind for client in self._clients.values())
        wait = 0.001 if behind else LOOK
        if self._gathering:
            wait = min(wait, self._gathering.left)
        is_due = False
        try:
            return self._inbox.lease(timeout=wait)
        except (Empty, EndOfStream):  # an end marker is no request
            is_due = bool(self._gathering) and self._gathering.left == 0
        except TooManyLeases:
            is_due = bool(self._gathering)
            if not is_due:  # clients that do not keep up: answers first
                time.sleep(0.001)
        if is_due:  # not within the handlers: what the user's function raises has no such context
            self._serve_together()
        return None

    def _sweep(self) -> None:
        for name, client in list(self._clients.items()):
            if client.is_gone():
                del self._clients[name]
                client.close()
                shmring.gc(name)

    def _serve(self, lease: shmring.Lease) -> None:
        try:
            head = Head.unpack(lease.data, ring=self._ring.path)
            client = self._client(head.reply_ring)
        except RingNotFound:  # its client is gone
            lease.release()
        except (ShmringError, ValueError) as error:
            print(f"shmring: a request cannot be answered: {error}", file=sys.stderr, flush=True)
            lease.release()
        else:
            self._serve_or_gather(Request(lease, head, client))

    def _serve_or_gather(self, request: Request) -> None:
        gathering = self._gathering
        if gathering is None or request.lease.redelivered:
            self._serve_together()  # the others are not to die of this one
            self._serve_alone(request)
            return
        try:
            batch = self._decode(request)
        except ShmringError:
            self._serve_alone(request)  # which tells its client
            return
        if is_group(batch) or 0 < request.head.rows < batch.num_rows:
            self._serve_together()  # nor wait until there are no groups
            self._serve_alone(request)
            return
        if not gathering.takes(batch):
            self._serve_together()
        gathering.add(_Gathered(request.lease, request.head, request.client, batch))
        if gathering.is_full:
            self._serve_together()

    def _serve_alone(self, request: Request) -> None:
        self._answer(request, self._worked_on(request, Heartbeat([request])))

    def _serve_together(self) -> None:
        """Work on what was gathered, as one batch; each request is answered by itself."""
        gathered = self._gathering.take() if self._gathering else []
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
                cut = self._worked_on_as_one(batches, heartbeat)
                spent = time.perf_counter_ns() - begun
        except WrongRows as error:
            wrong = error
        except BaseException:  # one request's fault, perhaps; sys.exit() in the function too
            pass
        batches.clear()
        for number, (request, count) in enumerate(zip(requests, rows, strict=True)):
            with suppress(RingNotFound):  # work that raised had no beat at its end
                heartbeat.beat()
            if cut is None and len(requests) > 1 and request.client.is_gone():
                request.lease.release()
                continue
            answer: Iterator[Piece | None]
            if wrong is not None:
                answer = map(_raise, [wrong])
            elif cut is not None:
                answer = self._pieces(request, cut[number])
            else:
                answer = self._worked_on(request, Heartbeat([request], requests[number + 1 :]))
            self._answer(request, answer, spent * count // max(1, sum(rows)))

    def _worked_on_as_one(
        self, batches: list[pa.RecordBatch], heartbeat: Heartbeat
    ) -> list[list[pa.RecordBatch]]:
        assert self._batching is not None
        rows = [batch.num_rows for batch in batches]
        calls, batch = Calls.of(joined(batches))
        given = [batch] if calls is None else calls.arguments(batch)
        answers = heartbeat.of(self._answers(given, calls))
        return split([part for part in answers if part is not None], rows)

    def _client(self, name: str) -> Client:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(name)
        return client

    def _answer(self, request: Request, pieces: Iterator[Piece | None], spent: int = 0) -> None:
        request.client.add(Job(request.lease, self._pushes(request, Timed(pieces, spent))))

    def _pushes(self, request: Request, pieces: Timed[Piece | None]) -> Generator[Push]:
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
                    yield self._push_batch(client, head.answer(number, 0, spent), *before)
                    before = None
                    number += 1
                    said = time.monotonic()
            worked += (spent := pieces.spent())
            batches = batches_wanted(request.batches, worked, nbytes) if request.batches else 0
            if request.lease.redelivered:  # a worker has died over several, perhaps
                batches = min(batches, 1)
            last = head.answer(number, FLAG_LAST, spent, batches)
            before, held = held, None
            yield push(last) if before is None else self._push_batch(client, last, *before)
        except GeneratorExit:
            raise
        except BaseException as error:  # sys.exit() in the user's function too
            text = raised(error).encode(errors="backslashreplace")[-_TRACEBACK_BYTES:]
            if held is not None and before is None:  # what came before the error goes before it
                with suppress(ShmringError):
                    yield self._push_batch(client, head.answer(number, 0), *held)
            larger = FLAG_LARGER if request.slots else 0
            failed = head.answer(0, FLAG_ERROR | FLAG_LAST | larger, batches=request.slots)
            yield push(failed, text)

    def _decode(self, request: Request) -> pa.RecordBatch:
        lease = request.lease
        message = pa.py_buffer(lease).slice(HEAD_BYTES)
        return decode_batch(message, None, ring=self._ring.path, message_id=lease.message_id)

    def _worked_on(self, request: Request, heartbeat: Heartbeat) -> Iterator[Piece | None]:
        calls, batch = Calls.of(self._decode(request))
        given = [batch] if calls is None else calls.arguments(batch)
        parts = list(zip(*(slices(each, request.head.rows) for each in given), strict=True))
        if self._batching is None:
            request.batches = len(parts)
        del batch, given
        answers: Iterable[pa.RecordBatch | None]
        if len(parts) == 1:
            answers = heartbeat.of(self._answers(parts.pop(), calls))
        else:
            answers = together(self._answers_in_turn(request, parts, calls, heartbeat))
        try:
            yield from self._pieces(request, answers)
        except MessageTooLarge as error:
            if calls is not None and len(calls.each) > 1:
                error.add_note(calls.remedy)
            raise

    def _answers(
        self, given: Sequence[pa.RecordBatch], calls: Calls | None
    ) -> Iterator[pa.RecordBatch | None]:
        """What comes of a slice, of which each call is given its arguments."""
        if calls is not None:
            yield from self._results(given, calls)
            return
        (batch,) = given
        rows = batch.num_rows
        counts = self._batching is not None and not is_group(batch)
        result = self._function(*arguments(batch))
        del batch, given
        answered = 0
        for answer in self._batches(result):
            answered += answer.num_rows
            yield answer
        if self._batching is not None and counts:
            self._batching.check(self._target, rows, answered)

    def _answers_in_turn(
        self,
        request: Request,
        parts: list[tuple[pa.RecordBatch, ...]],
        calls: Calls | None,
        heartbeat: Heartbeat,
    ) -> Iterator[pa.RecordBatch | None]:
        for number, part in enumerate(parts, 1):
            try:
                yield from heartbeat.of(self._answers(part, calls))
                yield None
                heartbeat.beat()
            except BaseException as error:
                error.add_note(
                    f"in batch {number} of the {len(parts)} of {request.head.describe()}"
                )
                raise

    def _results(
        self, given: Sequence[pa.RecordBatch], calls: Calls
    ) -> Iterator[pa.RecordBatch | None]:
        """Of UDFs: none before it is known that those of each are as many as the rows."""
        results: list[list[Any]] = []
        for number, (batch, call) in enumerate(zip(given, calls.each, strict=True), 1):
            result: list[Any] = []
            try:
                for answer in self._batches(self._function(batch)):
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
        if self._batching is not None:
            self._batching.check(self._target, rows, answered)
        elif answered != rows:
            raise WrongRows(
                f"{self._described} answered with another number of rows than a UDF must: "
                f"expected {rows}, got {answered}"
            )

    def _pieces(
        self, request: Request, batches: Iterable[pa.RecordBatch | None]
    ) -> Iterator[Piece | None]:
        client = request.client
        for batch in batches:
            if batch is None:
                yield None
                continue
            try:
                yield from client.encoder_for(batch).pieces(
                    batch,
                    client.ring.slots,
                    ring=client.ring.path,
                    prefix=HEAD_BYTES,
                    remedy=REPLY.remedy,
                )
            except MessageTooLarge as error:
                request.slots = error.slots
                raise

    def _batches(self, result: Any) -> Iterator[pa.RecordBatch]:
        for part in _parts(result):
            yield from self._batches_of(part)

    def _batches_of(self, part: Any) -> Iterator[pa.RecordBatch]:
        if part is None:
            raise TypeError(
                f"{self._target} returned None, not Arrow data: return the batch, or to answer "
                f"with no rows an empty one (batch.slice(0, 0))"
            )
        try:
            _, batches = batches_of(part)
        except TypeError as error:
            raise TypeError(f"what {self._target} returned cannot be sent: {error}") from None
        return batches

    def _push_batch(self, client: Client, head: Head, *piece: *Piece) -> Push:
        return partial(
            client.encoder_for(piece[0]).push,
            client.producer,
            *piece,
            prefix=head.pack(),
            kind=KIND_REPLY,
            timeout=0,
        )

    def _leave(self) -> None:
        deadline = time.monotonic() + _FAREWELL
        while not all(client.work() or client.is_gone() for client in self._clients.values()):
            if time.monotonic() > deadline:
                self._inbox.abandon()  # what is not answered yet goes to another worker
                break
            time.sleep(0.001)
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._inbox.close()
        self._ring.close()


def _parts(result: Any) -> Iterator[Any]:
    """What a function has returned, one by one if those are several."""
    return cast("Iterator[Any]", result) if isinstance(result, Iterator) else iter((result,))


def _raise(error: Exception) -> Piece:
    raise error


def _await_entry(take: Callable[[], Entry]) -> Entry:
    """Take part as soon as there is room; the supervisor ends a worker that waits too long."""
    while True:
        try:
            return take()
        except LimitReached:
            time.sleep(LOOK)


def _end_with(parent: int, sidecar: str) -> None:
    """End this process, whatever it is at, soon after its parent, and leave no ring."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    time.sleep(_FAREWELL)
    remove_own(sidecar)
    os._exit(1)


def _batching(function: Function, arguments: list[str]) -> Batching | None:
    """As the command says, or else as the function's decorator does."""
    if arguments:
        return Batching.from_arguments(*arguments)
    return getattr(function, "__sidecar_batching__", None)


def main(arguments: list[str]) -> int:
    """``python -m shmring.sidecars.worker TARGET NAME PARENT READY [ROWS WAIT]``.

    READY is a file descriptor into which a line is written when the function is found, with the
    number of workers that its decorator says, and an empty one when it is loaded. ROWS and WAIT are
    those of :class:`~shmring.sidecars.batching.Batching`.
    """
    # Ctrl-C in a terminal reaches the whole group: the supervisor ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target, name, parent, ready = arguments[0], arguments[1], int(arguments[2]), int(arguments[3])
    threading.Thread(target=_end_with, args=(parent, name), daemon=True).start()
    sys.path.insert(0, os.getcwd())
    try:
        _serve(target, name, parent, ready, arguments[4:])
    except Exception as error:  # before it served
        sys.stderr.write(raised(error))
        return 1
    finally:
        if os.getppid() != parent:  # nobody else will
            sweep(name)
    return 0


def _serve(target: str, name: str, parent: int, ready: int, options: list[str]) -> None:
    # Clients that wait see by it what they wait for. Its handle goes too, for else the worker would
    # be two participants: a handle that already has a role becomes another one for the next.
    with (
        _await_entry(lambda: shmring.attach(request_ring_name(name))) as waiting,
        _await_entry(lambda: waiting.producer(LOADING + target)),
    ):
        found = find_function(target)
        workers = at_least_one("workers", getattr(found, "__sidecar_workers__", 1))
        _tell(ready, b"%d\n" % workers)
        function = _instantiated(found, target)
        ring = _await_entry(lambda: shmring.attach(request_ring_name(name)))
        worker = Worker(function, target, ring, parent, _batching(function, options))

    def stop(number: int, frame: object) -> None:
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    _tell(ready, b"\n")
    os.close(ready)
    try:
        worker.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _tell(ready: int, what: bytes) -> None:
    with suppress(BrokenPipeError):  # the supervisor is gone, and the worker soon
        os.write(ready, what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
