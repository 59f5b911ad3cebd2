"""What a client says of its waits for room, and of requests that it had to make again."""

from __future__ import annotations

from contextlib import suppress

import pytest
from functions import numbers

import shmring
from shmring.sidecars import SidecarClient
from shmring.sidecars import client as module
from shmring.sidecars.wire import FLAG_LAST, KIND_REPLY, Head, request_ring_name

FILLING = b"\0" * 100_000


def full_ring(name):
    """A sidecar's ring without a process of the sidecar, of which each slot is taken."""
    ring = shmring.create(request_ring_name(name), slots=1024, temporary=True)
    ring.subscribe("workers", start="earliest")
    with ring.producer("filling") as filling, suppress(shmring.Full):
        while True:
            filling.push(FILLING, timeout=0)
    return ring


def answer_request(inbox):
    """Answer one as a worker that has nothing to say; what lies there before goes."""
    message = FILLING
    while message == FILLING:
        message = inbox.pop(timeout=120)
    head = Head.unpack(message, ring="requests")
    with shmring.attach(head.reply_ring) as replies, replies.producer() as out:
        out.push(head.answer(0, FLAG_LAST), kind=KIND_REPLY)


def waits(ring):
    return any(
        participant["name"] == "client" and participant["full_waits"]
        for participant in ring.participants()
    )


def test_time_that_a_client_waits_for_room_is_measured(name, client, thread, until, monkeypatch):
    monkeypatch.setattr(module, "_SLICE", 3600.0)
    with full_ring(name) as ring:
        it = client()
        asking = thread(lambda: list(it.map([numbers(0, 10_000)])))
        until(lambda: waits(ring))
        with ring.consumer("workers") as inbox:
            answer_request(inbox)
            assert asking.outcome() == []
    assert 0 < it.metrics.room_wait < 3600


def test_request_that_was_never_sent_is_no_retry(name, client, thread, until):
    with full_ring(name) as first:
        it = client(connect_timeout=600)
        asking = thread(lambda: list(it.map([numbers(0, 10_000)])))
        until(lambda: waits(first))
    with full_ring(name) as second, second.consumer("workers") as inbox:
        answer_request(inbox)
        assert asking.outcome() == []
    assert it.metrics.retries == 0


@pytest.mark.parametrize(
    "error",
    [
        shmring.PermissionRefused("cannot unlink it"),
        shmring.Contended("another process is busy"),
        OSError(30, "Read-only file system"),
    ],
    ids=["refused", "contended", "an error of the system"],
)
def test_client_waits_on_though_its_reply_ring_cannot_be_removed(
    name, client, thread, until, monkeypatch, error
):
    tried = []

    def fail(ring):
        tried.append(ring)
        raise error

    with full_ring(name) as first:
        it = client(connect_timeout=600)
        asking = thread(lambda: list(it.map([numbers(0, 10_000)])))
        until(lambda: waits(first))
        monkeypatch.setattr(shmring.Ring, "unlink", fail)
    until(lambda: len(tried) > 1 or asking.error, "two looks of the client")
    assert asking.error is None
    monkeypatch.undo()
    with full_ring(name) as second, second.consumer("workers") as inbox:
        answer_request(inbox)
        assert asking.outcome() == []


def test_client_logs_again_and_again_who_works_on_its_request(
    serve, name, marker, thread, until, monkeypatch, caplog
):
    monkeypatch.setattr(module, "_SAY_EVERY", 0.1)
    sidecar = serve("wait_for_marker")
    with SidecarClient(name) as client:
        asked = thread(lambda: list(client.map([numbers(1)])))
        until(lambda: len(caplog.messages) >= 2)
        marker.touch()
        assert asked.outcome() == [numbers(1)]
    (pid,) = sidecar.pids
    wanted = f'for sidecar "{name}": worker {pid} (functions:wait_for_marker) has been at request 0'
    assert all(wanted in message for message in caplog.messages)
