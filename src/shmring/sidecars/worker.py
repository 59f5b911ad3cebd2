"""One worker of a sidecar: takes requests, calls the function, answers.

Run as ``python -m shmring.sidecars.worker``; the supervisor (server.py) does.
A request stays leased until its answer is published: should the worker die in
between, the request is delivered again to another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import shmring
from shmring.batches import BatchEncoder, batches_of, decode_batch
from shmring.errors import Damaged, Empty, Full, RingNotFound, ShmringError, TooManyLeases
from shmring.sidecars.wire import (
    FLAG_ERROR,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REPLY,
    WORKERS_BRANCH,
    Head,
    request_ring_name,
)

__all__ = ["Worker", "load_function", "main"]

Function = Callable[[pa.RecordBatch], Any]

_IDLE = 0.2  # seconds between looks at the parent and at clients that may be gone
_FAREWELL = 5.0  # seconds that a worker told to stop waits for slow clients
_TRACEBACK_BYTES = 32_768


def load_function(target: str) -> Function:
    """The function that ``module:function`` names.

    A class is instantiated (once a worker: the place to load a model) and the
    instance is called with each batch.

    Raises
    ------
    ValueError : no such function, or not callable
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
    function = getattr(function, "__sidecar_function__", function)
    if isinstance(function, type):
        function = function()
    if not callable(function):
        raise ValueError(f"{target} is not callable")
    return function


class _Client:
    """A reply ring and what could not be put into it yet."""

    def __init__(self, name: str) -> None:
        self.ring = shmring.attach(name)
        self.producer = self.ring.producer("worker")
        self._encoder: BatchEncoder | None = None
        # Messages for a client that does not keep up: the worker goes on with
        # the other clients. The client bounds it by its requests in flight.
        self.backlog: deque[tuple[Callable[[], int], shmring.Lease | None]] = deque()

    def encoder_for(self, batch: pa.RecordBatch) -> BatchEncoder:
        if self._encoder is None or not batch.schema.equals(self._encoder.schema):
            self._encoder = BatchEncoder(batch.schema)
        return self._encoder

    def send(self, push: Callable[[], int], lease: shmring.Lease | None) -> None:
        self.backlog.append((push, lease))
        self.flush()

    def flush(self) -> bool:
        """Publish what fits; whether all did."""
        while self.backlog:
            push, lease = self.backlog[0]
            try:
                push()
            except Full:
                return False
            self.backlog.popleft()
            if lease is not None:
                lease.release()
        return True

    def is_gone(self) -> bool:
        return not os.path.exists(self.ring.path) or not any(
            seat["alive"] and seat["role"] == "member" for seat in self.ring.seats()
        )

    def close(self) -> None:
        for _, lease in self.backlog:
            if lease is not None:
                lease.release()
        self.backlog.clear()
        self.producer.close()
        self.ring.close()


class Worker:
    """Serves requests of one sidecar until :meth:`stop` is called.

    Parameters
    ----------
    function : called with each RecordBatch; returns Arrow data (a RecordBatch, a
        Table, anything with ``__arrow_c_stream__``), an iterator of such, or None
    name : of the sidecar, whose ring exists
    """

    def __init__(self, function: Function, name: str) -> None:
        self._function = function
        self._clients: dict[str, _Client] = {}
        self._stopping = False
        self._parent = os.getppid()
        self._ring = shmring.attach(request_ring_name(name))
        self._inbox = self._ring.consumer(WORKERS_BRANCH, start="earliest")

    def stop(self) -> None:
        """Let :meth:`run` return after the request at hand."""
        self._stopping = True

    def run(self) -> None:
        """Serve."""
        swept = time.monotonic()
        try:
            while not self._stopping and os.getppid() == self._parent:
                busy = any(client.backlog for client in self._clients.values())
                try:
                    lease = self._inbox.lease(timeout=0.001 if busy else _IDLE)
                except Empty:
                    lease = None
                except TooManyLeases:  # clients that do not keep up: answers first
                    time.sleep(0.001)
                    lease = None
                if lease is not None:
                    self._serve(lease)
                for client in self._clients.values():
                    if client.backlog:
                        client.flush()
                if time.monotonic() - swept > _IDLE:
                    swept = time.monotonic()
                    self._sweep()
        finally:
            self.close()

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
        except (Damaged, RingNotFound, ValueError):
            # Nobody to answer to: a foreign message, or a client that is gone.
            lease.release()
            return
        try:
            self._answer(client, head, lease)
        except ShmringError:
            self._fail(client, head, lease)

    def _client(self, name: str) -> _Client:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(name)
        return client

    def _answer(self, client: _Client, head: Head, lease: shmring.Lease) -> None:
        message = pa.py_buffer(lease).slice(HEAD_BYTES)
        try:
            batch = decode_batch(message, None, ring=self._ring.path, message_id=lease.message_id)
            results = self._pieces(client, self._function(batch))
            piece = 0
            ready = next(results, None)
            while ready is not None:
                following = next(results, None)
                last = following is None
                self._send(
                    client,
                    head.answer(piece, FLAG_LAST if last else 0),
                    ready,
                    lease if last else None,
                )
                ready = following
                piece += 1
        except ShmringError:
            raise
        except Exception:
            # The user's function failed: his traceback is the answer.
            self._fail(client, head, lease)
            return
        if piece == 0:
            empty = head.answer(0, FLAG_LAST).pack()
            client.send(lambda: client.producer.push(empty, kind=KIND_REPLY, timeout=0), lease)

    def _pieces(self, client: _Client, result: Any) -> Iterator[pa.RecordBatch]:
        if result is None:
            return
        parts = result if isinstance(result, Iterator) else (result,)
        for part in parts:
            _, batches = batches_of(part)
            for batch in batches:
                yield from client.encoder_for(batch).pieces(
                    batch, client.ring.slots, ring=client.ring.path, prefix=HEAD_BYTES
                )

    def _send(
        self, client: _Client, head: Head, batch: pa.RecordBatch, lease: shmring.Lease | None
    ) -> None:
        encoder = client.encoder_for(batch)
        prefix = head.pack()

        def push() -> int:
            return encoder.push(client.producer, batch, prefix=prefix, kind=KIND_REPLY, timeout=0)

        client.send(push, lease)

    def _fail(self, client: _Client, head: Head, lease: shmring.Lease) -> None:
        text = traceback.format_exc().encode()[-_TRACEBACK_BYTES:]
        message = head.answer(0, FLAG_ERROR | FLAG_LAST).pack() + text
        client.send(lambda: client.producer.push(message, kind=KIND_REPLY, timeout=0), lease)

    def close(self) -> None:
        """Leave; what could not be answered goes to another worker."""
        deadline = time.monotonic() + _FAREWELL
        while not all(client.flush() or client.is_gone() for client in self._clients.values()):
            if time.monotonic() > deadline:
                # Leases of a member that leaves are released, those of one
                # that dies are delivered again.
                os._exit(1)
            time.sleep(0.001)
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._inbox.close()
        self._ring.close()


def main(arguments: list[str]) -> int:
    """``python -m shmring.sidecars.worker TARGET NAME``."""
    target, name = arguments
    sys.path.insert(0, os.getcwd())
    # Ctrl-C in a terminal reaches the whole group: the supervisor ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(load_function(target), name)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    with contextlib.suppress(BrokenPipeError):
        print("ready", flush=True)
    worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
