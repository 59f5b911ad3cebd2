"""One worker of a sidecar: takes requests, calls the function, answers.

The supervisor (supervisor.py) runs it as ``python -m shmring.sidecars.worker``.
A request stays leased until its answer is published: if the worker dies
before that, the request is delivered again to another worker.

:meth:`Worker._serve` is the common case, from the request to its answer; :class:`Joint` works on
several requests as one batch. Answers that take more than one call or message are in answers.py.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TypeVar

import pyarrow as pa

import shmring
from shmring._shmring import is_used
from shmring.common.closing import let_go
from shmring.errors import (
    Empty,
    EndOfStream,
    LimitReached,
    RingNotFound,
    ShmringError,
    TooManyLeases,
)
from shmring.ring.names import REQUESTS
from shmring.sidecars.answers import LOOK, Answers, Heartbeat, ServedClient, ServedRequest
from shmring.sidecars.batches import SMALL, WORTH, batches_wanted, joined
from shmring.sidecars.calls import Calls, is_group
from shmring.sidecars.functions import (
    Batching,
    Function,
    WrongRows,
    find_function,
    instantiated,
    raised,
    readiness_of,
    told,
    warm_up,
)
from shmring.sidecars.holds import Holds
from shmring.sidecars.options import ServerOptions, batching_of, decorated
from shmring.sidecars.rings import LOADING, sweep
from shmring.sidecars.wire import (
    FLAG_KEEPS,
    FLAG_LAST,
    WORKERS_BRANCH,
    Head,
    request_ring_name,
)

Entry = TypeVar("Entry")

_PAUSE = 0.05  # seconds between checks whether the model is ready
_FAREWELL = 5.0  # seconds that a worker waits for slow clients after it was told to stop


class Worker:
    """Serves requests of one sidecar until :meth:`stop` is called.

    The function is called with each RecordBatch, or with the two batches of a cogroup; it returns
    Arrow data (a RecordBatch, a Table, anything with ``__arrow_c_stream__``) or an iterator of
    Arrow data. Its batch is in the memory of the sidecar's ring, and occupies the ring until Python
    frees the batch: a function that keeps batches must copy them.
    """

    def __init__(
        self,
        function: Function,
        target: str,
        ring: shmring.Ring,
        parent: int,
        batching: Batching | None = None,
        pinned: bool = False,
    ) -> None:
        self._function = function
        self._target = target  # name of the function in errors
        self._is_ready = readiness_of(function)
        self._parent = parent  # process id of the supervisor; the worker ends with it
        self._clients: dict[bytes, ServedClient] = {}
        # Clients whose answers wait for room in a reply ring.
        self._behind: set[ServedClient] = set()
        self._stopping = False
        self._ring = ring  # the sidecar's request ring; the worker closes it
        sidecar = str(ring.name).removeprefix(REQUESTS)
        self._answers = Answers(function, target, sidecar, ring.path, batching)
        self._joint = None if batching is None else Joint(self._answers, batching)
        self._inbox = _await_entry(
            lambda: ring.consumer(WORKERS_BRANCH, start="earliest", name=target)
        )
        # Requests cannot move out of a ring that is pinned for a GPU.
        self._holds = Holds(ring, self._inbox, sidecar, moves=not pinned)

    def stop(self) -> None:
        """Let :meth:`run` return after the current request."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped, then leave; other workers get the unanswered requests.

        If an exception leaves this method, the worker still holds its requests. The process must
        end then, so that other workers get these requests.
        """
        holds = self._holds
        swept = time.monotonic()
        while not self._stopping:
            lease = self._next(0.001 if self._behind else LOOK)
            if lease is not None:
                holds.current = lease
                if lease.redelivered:
                    holds.forget_copy(lease)
                self._serve(lease)
                if is_used(lease):
                    holds.leases.setdefault(lease, "")
            if self._behind:
                for client in tuple(self._behind):
                    client.work()
            if holds.leases:
                holds.settle()
            if time.monotonic() - swept > LOOK:
                swept = time.monotonic()
                if self._is_ready is not None and not self._is_ready():
                    self._await_ready(self._is_ready)
                self._sweep()
                if os.getppid() != self._parent:
                    break
        if self._joint is not None:
            self._joint.work()
        self._leave()

    def _await_ready(self, is_ready: Callable[[], object]) -> None:
        """Take no request until the model is ready again; show in the ring that it is loading."""
        with ExitStack() as ends:
            # Show nothing if the ring has no free seat: work does not depend on this entry.
            with suppress(LimitReached):
                ends.enter_context(self._ring.producer(LOADING + self._target))
            while not self._stopping and os.getppid() == self._parent and not is_ready():
                for client in tuple(self._behind):
                    client.work()
                time.sleep(_PAUSE)

    def _next(self, wait: float) -> shmring.Lease | None:
        """Return the next request; None if none came, or if waiting requests were worked on."""
        joint = self._joint
        if joint is not None:
            wait = min(wait, joint.left)
        # CHANGE: edit this for a new error
        try:
            return self._inbox.lease(timeout=wait)
        except (Empty, EndOfStream):  # no message, or an end marker, which is no request
            is_due = joint is not None and joint.left == 0
        except TooManyLeases:
            is_due = joint is not None and joint.left < float("inf")
            if not is_due:  # pause: all leases are of requests whose answers wait for room
                time.sleep(0.001)
        if is_due and joint is not None:
            # Work outside of the handler above: inside, errors of the user's function would show
            # Empty as their context.
            joint.work()
        return None

    # CHANGE: edit this for a new field of a request
    def _serve(self, lease: shmring.Lease) -> None:
        """Answer a request of one batch for which the function returns one batch.

        Other requests, and answers that have to wait for room, are passed on to Answers.
        """
        try:
            head = Head.unpack(lease, ring=self._ring.path)
            client = self._clients.get(head.reply) or self._client(head)
        except RingNotFound:  # the client has gone, with its reply ring: nobody needs an answer
            lease.release()
            return
        except (ShmringError, ValueError) as error:
            print(f"shmring: a request cannot be answered: {error}", file=sys.stderr, flush=True)
            lease.release()
            return
        if self._joint is not None:
            self._joint.take(ServedRequest(lease, head, client))
            return
        if lease.redelivered or client in self._behind:
            self._answers.work_on(ServedRequest(lease, head, client))
            return

        begun = time.perf_counter_ns()
        batch = answer = None
        is_plain = False
        try:
            batch = self._answers.decode(lease, client)
            marked = batch.schema.metadata and (Calls.are_in(batch) or is_group(batch))
            is_plain = not marked and not 0 < head.rows < batch.num_rows
            if is_plain:
                answer = self._function(batch)
            if isinstance(answer, pa.RecordBatch):
                sent, most, nbytes = answer, SMALL, SMALL
                if head.flags & FLAG_KEEPS and len(lease) >= WORTH:
                    own = client.unchanged.without(batch, answer)
                    if own is not None:
                        sent, most, nbytes = own, client.most, len(lease)
                worked = time.perf_counter_ns() - begun
                last = head.answer(0, FLAG_LAST, worked, batches_wanted(1, worked, nbytes))
                if client.push_within(most, sent, last):
                    # Drop all arrays: the request's slots are freed with the last one.
                    batch = answer = sent = own = None
                    lease.release()
                    return
        except BaseException as error:  # includes sys.exit() in the function
            self._answers.fail(ServedRequest(lease, head, client), told(error))
            return
        spent = time.perf_counter_ns() - begun
        if is_plain:
            self._answers.go_on(ServedRequest(lease, head, client), answer, spent)
        else:
            self._answers.work_on(ServedRequest(lease, head, client), batch=batch, spent=spent)

    def _client(self, head: Head) -> ServedClient:
        client = self._clients[head.reply] = ServedClient(head.reply_ring, self._behind)
        return client

    def _sweep(self) -> None:
        for lease in self._holds.of_the_dead():
            self._serve(lease)
        for reply, client in list(self._clients.items()):
            if client.is_gone():
                del self._clients[reply]
                client.close()
                shmring.gc(client.name)

    def _leave(self) -> None:
        deadline = time.monotonic() + _FAREWELL
        while not all(client.work() or client.is_gone() for client in self._clients.values()):
            if time.monotonic() > deadline:
                self._inbox.abandon()  # another worker gets the unanswered requests
                self._holds.abandon()
                break
            time.sleep(0.001)
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._holds.close()
        self._inbox.close()
        self._ring.close()


def split(parts: Sequence[pa.RecordBatch], rows: Sequence[int]) -> list[list[pa.RecordBatch]]:
    """Cut a joint answer into one part for each number in `rows`, which is the part's rows.

    A part is a list of batches; a part of 0 rows has one batch without rows.
    """
    table = pa.Table.from_batches(parts)
    first = 0
    cut: list[list[pa.RecordBatch]] = []
    for count in rows:
        cut.append(table.slice(first, count).to_batches() or [parts[0].slice(0, 0)])
        first += count
    return cut


class Joint:
    """Joins requests of several clients to one batch for the function.

    If the joint call raises an error, each request is worked on alone, so that only the request
    that is the cause fails. But if the function returns another number of rows than it was given,
    all requests fail. A request that a worker has died over is never joined to others.
    """

    def __init__(self, answers: Answers, batching: Batching) -> None:
        self._answers = answers
        self._batching = batching
        self._requests: list[ServedRequest] = []  # requests that wait for others
        self._batches: list[pa.RecordBatch] = []  # batch of each request, in the ring's memory
        self._rows = 0
        self._due = 0.0

    @property
    def left(self) -> float:
        """Seconds that the waiting requests may still wait; infinite if none waits."""
        return max(0.0, self._due - time.monotonic()) if self._requests else float("inf")

    def take(self, request: ServedRequest) -> None:
        """Let a request wait for others, or work on it."""
        batch = None if request.lease.redelivered else self._joinable(request)
        if batch is None:
            # Work on the waiting requests first. They would wait too long otherwise: this request,
            # and perhaps many later requests (for example groups), cannot be joined to them.
            self.work()
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

    # CHANGE: edit this for a new field of a request
    def _fits(self, batch: pa.RecordBatch) -> bool:
        """Whether the batch can be joined to the waiting ones."""
        return (
            batch.num_columns > 0
            and self._rows + batch.num_rows <= self._batching.rows
            # Compare the metadata, too: it may have the calls to make and the types of answers.
            and batch.schema.equals(self._batches[0].schema, check_metadata=True)
        )

    def _joinable(self, request: ServedRequest) -> pa.RecordBatch | None:
        """Return a request's batch; None if it cannot be joined with others."""
        try:
            batch = self._answers.decode(request.lease, request.client)
        except ShmringError:
            return None  # Answers.work_on() decodes again, and sends this error to the client
        return None if is_group(batch) or 0 < request.head.rows < batch.num_rows else batch

    def work(self) -> None:
        """Work on the waiting requests as one batch, and answer each."""
        requests, self._requests = self._requests, []
        batches, self._batches = self._batches, []
        self._rows = 0
        rows = [batch.num_rows for batch in batches]
        begun, spent = time.perf_counter_ns(), 0
        cut: list[list[pa.RecordBatch]] | None = None
        wrong: str | None = None
        heartbeat = Heartbeat(requests, requests)
        try:
            if len(batches) > 1:
                cut = self._as_one(batches, heartbeat)
                spent = time.perf_counter_ns() - begun
        except WrongRows as error:
            wrong = told(error)
        except BaseException as error:  # includes sys.exit(); below, each request runs alone
            let_go(error, tracebacks=True)
        batches.clear()
        for number, (request, count) in enumerate(zip(requests, rows, strict=True)):
            # Send signs of life, if due, before each answer: if the joint call has raised an error,
            # each request is worked on alone now, and the clients of the last ones wait long.
            with suppress(RingNotFound):  # all clients are gone
                heartbeat.beat()
            share = spent * count // max(1, sum(rows))
            if cut is None and len(requests) > 1 and request.client.is_gone():
                request.lease.release()
            elif wrong is not None:
                self._answers.fail(request, wrong)
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
        answers = heartbeat.of(self._answers.answers_to(given, calls))
        return split([part for part in answers if part is not None], rows)


def _await_entry(take: Callable[[], Entry]) -> Entry:
    """Return the result of `take`; call it again for as long as the ring has no free seat.

    There is no limit here: the supervisor ends a worker that is not ready in time.
    """
    while True:
        try:
            return take()
        except LimitReached:
            time.sleep(LOOK)


def _end_with(parent: int, sidecar: str) -> None:
    """Wait for the parent's end, then end this process, too, and remove the sidecar's rings."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    time.sleep(_FAREWELL)
    with suppress(OSError):  # ignore a lack of memory: the user can run `shmring gc`
        # The sweeper waits for the end of its input, which comes when this process ends and is no
        # longer a participant of the rings. The sweeper's path has the standard library before the
        # user's folders, which may have a json.py.
        sweeper = "import sys; sys.path += sys.argv[2:]; sys.stdin.read()"
        sweeper += f"; from {sweep.__module__} import sweep; sweep(sys.argv[1])"
        command = [sys.executable, "-P", "-c", sweeper, sidecar, *sys.path]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, start_new_session=True)
    os._exit(1)


def main(arguments: list[str]) -> int:
    """``python -m shmring.sidecars.worker TARGET NAME PARENT READY OPTIONS``.

    READY is a file descriptor. The worker writes a line to it when the function is found, with the
    number of workers that its decorator asks for, and an empty line when the function is loaded.
    OPTIONS are the supervisor's options, in JSON.
    """
    # Let collections of garbage pass over the modules, which stay. Otherwise the collection at the
    # end of the process takes a sixth of the CPU time of a worker that only starts and ends.
    gc.freeze()
    # Ctrl-C in a terminal reaches the whole process group; the supervisor ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target, name, parent, ready = arguments[0], arguments[1], int(arguments[2]), int(arguments[3])
    threading.Thread(target=_end_with, args=(parent, name), daemon=True).start()
    sys.path.insert(0, os.getcwd())
    try:
        _serve(target, name, parent, ready, json.loads(arguments[4]))
    except Exception as error:  # an error before the worker serves
        sys.stderr.write(raised(error))
        return 1
    finally:
        if os.getppid() != parent:  # remove the rings here, because the supervisor has ended
            sweep(name)
    return 0


# CHANGE: edit this for a new option of a sidecar
def _serve(target: str, name: str, parent: int, ready: int, options: ServerOptions) -> None:
    # While the function loads, a producer shows the function's name to waiting clients. This
    # producer uses the seat of `waiting`. A consumer opened through `waiting`, too, would need a
    # second seat, and the process would keep both seats. So the worker attaches again for its
    # consumer, and closes `waiting`, which gives its seat back.
    with (
        _await_entry(lambda: shmring.attach(request_ring_name(name))) as waiting,
        _await_entry(lambda: waiting.producer(LOADING + target)),
    ):
        found = find_function(target)
        own = decorated(found)
        _tell(ready, b"%d\n" % own.get("workers", 1))
        function = instantiated(found, target)
        warm_up(function)
        is_ready = readiness_of(function)
        while is_ready is not None and not is_ready():  # the supervisor kills a worker that is late
            time.sleep(_PAUSE)
        ring = _await_entry(lambda: shmring.attach(request_ring_name(name)))
        pinned = bool(options.get("pin"))
        if pinned:
            ring.pin()
        batching = batching_of(options) or batching_of(own)
        worker = Worker(function, target, ring, parent, batching, pinned)

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
    with suppress(BrokenPipeError):  # the supervisor has ended; another thread ends the worker
        os.write(ready, what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
