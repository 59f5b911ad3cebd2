"""Clients of the test's sidecar, and where its functions look for their marker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from fixture_types import Until

import shmring
from shmring.arrow.batches import BatchEncoder, decode_batch
from shmring.sidecars import SidecarClient
from shmring.sidecars.wire import (
    FLAG_AGAIN,
    FLAG_ERROR,
    FLAG_LAST,
    HEAD_BYTES,
    KIND_REQUEST,
    Head,
    request_ring_name,
)


@pytest.fixture
def client(name: str) -> Iterator[Callable[..., SidecarClient]]:
    """Makes clients of the test's sidecar, or of another one; they are closed with the test."""
    with contextlib.ExitStack() as ends:

        def make(sidecar: str = name, **options: object) -> SidecarClient:
            return ends.enter_context(SidecarClient(sidecar, **options))

        yield make


@pytest.fixture
def map_all(name: str) -> Callable[..., list[pa.RecordBatch]]:
    """Sends batches by a client of their own, and gives all answers."""

    def map_all(*batches: pa.RecordBatch, **options: object) -> list[pa.RecordBatch]:
        with SidecarClient(name, **options) as client:
            return list(client.map(batches))

    return map_all


@dataclass
class Answer:
    """All pieces of it."""

    batches: list[pa.RecordBatch]
    again: int = 0  # how often it was begun again
    error: str = ""
    batches_wanted: int = 0
    pieces: int = 0

    def column(self, name: str) -> list[Any]:
        """Its values; how many pieces they come in is a matter of time."""
        return [value for batch in self.batches for value in batch[name].to_pylist()]


def _send(name: str, replies: Sequence[str], batches: Sequence[pa.RecordBatch], rows: int) -> None:
    with shmring.attach(request_ring_name(name)) as requests, requests.producer() as out:
        for number, (batch, reply) in enumerate(zip(batches, replies, strict=True)):
            encoder = BatchEncoder(batch.schema)
            prefix = Head.of(number, reply, rows=rows).pack()
            nbytes = pa.ipc.get_record_batch_size(batch)
            encoder.push(out, batch, nbytes, prefix=prefix, kind=KIND_REQUEST, timeout=60)


@pytest.fixture
def send(name: str) -> Callable[..., None]:
    """Sends batches as requests 0, 1, ... whose answers go into these rings."""

    def send(replies: Sequence[str], *batches: pa.RecordBatch) -> None:
        _send(name, replies, batches, 0)

    return send


@pytest.fixture
def ask(name: str, until: Until) -> Callable[..., list[Answer]]:
    """Sends batches as requests of so many rows at a time; the answer to each.

    With `full`, the answers are taken when the ring for them, which is small, has been full.
    """

    def ask_all(*batches: pa.RecordBatch, rows: int = 0, full: bool = False) -> list[Answer]:
        replies = f"{name}-answers"
        with (
            shmring.create(replies, slots=1024 if full else 4096, temporary=True) as ring,
            ring.consumer("client", start="earliest") as inbox,
        ):
            _send(name, [replies] * len(batches), batches, rows)
            if full:
                until(lambda: any(each["full_waits"] for each in ring.participants()))
            return _answers_of(inbox, *range(len(batches)))

    return ask_all


@pytest.fixture
def answer_of() -> Callable[[shmring.Consumer, int], Answer]:
    """Waits for the whole answer to the request of this number."""
    return lambda inbox, number: _answers_of(inbox, number)[0]


def _answers_of(inbox: shmring.Consumer, *numbers: int) -> list[Answer]:
    answers = {number: Answer([]) for number in numbers}
    left = list(numbers)
    while left:
        data = inbox.pop(timeout=120)
        head = Head.unpack(data, ring="answers")
        body = pa.py_buffer(data).slice(HEAD_BYTES)
        assert head.number == left[0] or not (head.flags or body.size)  # signs of life come early
        answer = answers[head.number]
        if head.flags & FLAG_AGAIN:
            answers[head.number] = Answer([], again=answer.again + 1)
            continue
        if head.flags & FLAG_ERROR:
            answer.error = body.to_pybytes().decode()
        else:
            assert head.piece == answer.pieces
            answer.pieces += 1
            if body.size:
                answer.batches.append(decode_batch(body, None, ring="answers", message_id=0))
        if head.flags & FLAG_LAST:
            answer.batches_wanted = head.batches
            left.pop(0)
    return [*answers.values()]
