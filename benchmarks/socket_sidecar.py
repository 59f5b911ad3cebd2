"""The same sidecar job over a Unix socket: what one would write without a ring.

A few processes accept on one socket; each connection is an Arrow IPC stream whose
batches are answered by a stream of as many. The client sends ahead like the ring's.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from benchmarks.processes import SPAWN, die_with_parent

BUFFER_BYTES = 4 << 20


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The job: nothing. What is left is the transport."""
    return batch


def _enlarge(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


def _answer(connection: socket.socket, function: Callable[[Any], Any]) -> None:
    with (
        connection.makefile("rb", buffering=1 << 16) as requests,
        connection.makefile("wb") as answers,
        pa.ipc.open_stream(requests) as reader,
    ):
        writer: pa.RecordBatchStreamWriter | None = None
        for batch in reader:
            result = function(batch)
            writer = writer or pa.ipc.new_stream(answers, result.schema)
            writer.write_batch(result)
            answers.flush()
        if writer is not None:
            writer.close()


def _work(listener: socket.socket, function: Callable[[Any], Any]) -> None:
    die_with_parent()
    while True:
        connection, _ = listener.accept()
        # A client that was killed or has seen enough only ends its connection.
        with connection, contextlib.suppress(OSError, pa.ArrowException):
            _enlarge(connection)
            _answer(connection, function)


@contextlib.contextmanager
def serve(function: Callable[[Any], Any], *, workers: int) -> Iterator[str]:
    """Answer requests with `function` in some processes; yields the socket's path."""
    with (
        tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        path = f"{folder}/sidecar"
        listener.bind(path)
        listener.listen()
        processes = [
            SPAWN.Process(target=_work, args=(listener, function), daemon=True)
            for _ in range(workers)
        ]
        for process in processes:
            process.start()
        try:
            yield path
        finally:
            for process in processes:
                process.kill()
                process.join()


@dataclass(frozen=True)
class SocketClient:
    """A function for mapInArrow that lets the server at `path` do the work.

    A thread sends, so that a full socket never stops the reader of the answers.
    """

    path: str
    in_flight: int = 3

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            _enlarge(end)
            end.connect(self.path)
            outgoing: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()
            sender = threading.Thread(target=_send, args=(end, outgoing), daemon=True)
            sender.start()
            with end.makefile("rb", buffering=1 << 16) as stream:
                yield from self._answers(batches, outgoing, stream)
            sender.join()

    def _answers(
        self,
        batches: Iterator[pa.RecordBatch],
        outgoing: queue.SimpleQueue[pa.RecordBatch | None],
        stream: Any,
    ) -> Iterator[pa.RecordBatch]:
        reader: pa.RecordBatchStreamReader | None = None
        under_way = 0
        for batch in batches:
            outgoing.put(batch)
            under_way += 1
            if under_way == self.in_flight:
                reader = reader or pa.ipc.open_stream(stream)
                yield reader.read_next_batch()
                under_way -= 1
        outgoing.put(None)
        if under_way:
            reader = reader or pa.ipc.open_stream(stream)
            yield from reader


def _send(end: socket.socket, outgoing: queue.SimpleQueue[pa.RecordBatch | None]) -> None:
    # The answers' side sees a server that went away, and says so.
    with contextlib.suppress(OSError), end.makefile("wb") as stream:
        writer: pa.RecordBatchStreamWriter | None = None
        while (batch := outgoing.get()) is not None:
            writer = writer or pa.ipc.new_stream(stream, batch.schema)
            writer.write_batch(batch)
            stream.flush()
        if writer is not None:
            writer.close()
            stream.flush()
        end.shutdown(socket.SHUT_WR)
