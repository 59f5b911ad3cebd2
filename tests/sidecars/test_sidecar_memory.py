"""Sidecars in little shared memory, as containers have it, and what is too large for them."""

from __future__ import annotations

import functools

import pyarrow as pa
import pytest

import shmring
from shmring.sidecars import SidecarClient

PRELUDE = """
    import numpy, pyarrow, shmring
    from shmring.sidecars import Sidecar, SidecarClient

    def numbers(first, rows=10):
        return pyarrow.record_batch({"x": numpy.arange(first, first + rows)})

    def slots(kind):
        return [shmring.attach(name, read_only=True).slots for name in shmring.rings()
                if name.startswith(kind)]
"""


@pytest.fixture
def in_64_mb(in_small_shm):
    """Runs Python code with a /dev/shm of 64 MB; what it printed."""
    return functools.partial(in_small_shm, "64m", PRELUDE)


@pytest.mark.slow
def test_clients_work_side_by_side_in_64_mb(in_64_mb):
    said = in_64_mb(
        """
        batches = [numbers(i * 1000, 1000) for i in range(5)]
        with Sidecar("functions:identity", name="s", workers=2) as sidecar:
            clients = [SidecarClient("s") for _ in range(16)]
            maps = [client.map(batches) for client in clients]
            for batch in batches:
                assert all(next(answers) == batch for answers in maps)
            print(sidecar.slots, *slots("reply."))
            for client in clients:
                client.close()
        """
    )
    request, *replies = map(int, said.split())
    assert request == 32768
    assert len(replies) == 16
    assert max(replies) == 4096
    assert min(replies) >= 1024


def test_client_that_finds_no_memory_at_all_says_what_to_set(in_64_mb):
    said = in_64_mb(
        """
        with Sidecar("functions:identity", name="s") as sidecar:
            clients = []
            try:
                while True:
                    clients.append(SidecarClient("s", connect_timeout=0))
            except shmring.NoSpace as error:
                print(len(clients), error)
            for client in clients:
                client.close()
        """
    )
    count, _, text = said.partition(" ")
    assert int(count) > 30
    assert "/dev/shm has 0 of 64 MB left, and a ring of 1024 slots needs 0.3 MB" in text
    assert "--shm-size=1g" in text


def test_client_waits_for_memory_and_says_so_if_there_comes_none(in_64_mb):
    said = in_64_mb(
        """
        import threading

        with Sidecar("functions:identity", name="s", slots=1024):
            first = SidecarClient("s", reply_slots=131072)
            try:
                SidecarClient("s", reply_slots=131072, connect_timeout=0.2)
            except shmring.NoSpace as error:
                print(error)
            made = []
            waiting = threading.Thread(
                target=lambda: made.append(
                    SidecarClient("s", reply_slots=131072, connect_timeout=300)
                )
            )
            waiting.start()
            with shmring.attach("sidecar.s", read_only=True) as ring:
                while sum(each["name"] == "client" for each in ring.participants()) < 2:
                    pass
            first.close()
            waiting.join()
            print(list(made[0].map([numbers(1)])) == [numbers(1)])
            made[0].close()
        """
    )
    error, done = said.splitlines()
    assert "waited 0.2 s, connect_timeout=...); give it more" in error
    assert done == "True"


def test_size_that_the_user_named_is_not_changed(in_64_mb):
    said = in_64_mb(
        """
        try:
            Sidecar("functions:identity", name="s", slots=1 << 20).start()
        except shmring.NoSpace as error:
            print(error)
        with Sidecar("functions:identity", name="s", slots=1024) as sidecar:
            try:
                SidecarClient("s", reply_slots=1 << 20)
            except shmring.NoSpace as error:
                print(error)
            with SidecarClient("s", reply_slots=65536):
                print(sidecar.slots, *slots("reply."))
        """
    )
    request, reply, sizes = said.splitlines()
    assert "make the ring smaller with `shmring sidecar --slots ...`" in request
    assert "make the ring smaller with reply_slots=... of through()" in reply
    assert sizes == "1024 65536"


@pytest.fixture
def served(serve):
    return serve("identity", slots=8192)


ROW = pa.record_batch({"s": ["x" * 200_000]})


def test_request_that_is_too_large_names_the_sidecars_slots(served, name):
    row = pa.record_batch({"s": ["x" * 2_000_000]})
    with (
        SidecarClient(name) as client,
        pytest.raises(shmring.MessageTooLarge, match=r"`shmring sidecar --slots 16384`"),
    ):
        list(client.map([row]))


def test_answer_that_is_too_large_names_the_clients_slots(served, name):
    with (
        SidecarClient(name, reply_slots=1024) as client,
        pytest.raises(shmring.SidecarError, match=r"reply_slots=2048 of through\(\)"),
    ):
        list(client.map([ROW]))


def test_slots_that_the_errors_name_are_enough(served, map_all):
    assert map_all(ROW, reply_slots=2048) == [ROW]
