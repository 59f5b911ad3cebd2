"""Rings that are given to other processes, as multiprocessing and executors do with arguments."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from ring_work import describe, push_own_pid, read_one

import shmring

SPAWN = get_context("spawn")


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=SPAWN) as executor:
        yield executor


def test_a_spawned_process_takes_a_ring_as_an_argument(ring: shmring.Ring) -> None:
    with ring.consumer("b") as inp:
        process = SPAWN.Process(target=push_own_pid, args=(ring, 1))
        process.start()
        assert inp.pop(timeout=120) == b"%d" % process.pid
        process.join()
        assert process.exitcode == 0
    assert not ring.closed


def test_an_executor_takes_a_ring_and_payloads_go_through_the_ring(
    ring: shmring.Ring, workers: ProcessPoolExecutor
) -> None:
    ring.subscribe("b")
    pids = {future.result() for future in [workers.submit(push_own_pid, ring, 3) for _ in "ab"]}
    assert os.getpid() not in pids
    said = [workers.submit(read_one, ring, "b").result() for _ in range(6)]
    assert {int(each) for each in said} == pids


def test_what_a_ring_was_attached_as_arrives(name: str, workers: ProcessPoolExecutor) -> None:
    with (
        shmring.create(name, slots=1024, temporary=True) as ring,
        shmring.attach(name, read_only=True) as looker,
    ):
        uuid = ring.info.uuid
        assert workers.submit(describe, ring).result() == (name, ring.path, False, uuid)
        assert workers.submit(describe, looker).result() == (name, ring.path, True, uuid)


def test_a_ring_at_a_path_is_found_from_another_folder(
    tmp_path: Path, workers: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with shmring.create(path="here.ring", slots=1024) as ring:
        sent = pickle.dumps(ring)
        monkeypatch.chdir("/")
        with pickle.loads(sent) as received:
            assert received.path == str(tmp_path / "here.ring")


def test_the_ring_that_was_sent_is_not_owned_by_its_receiver(ring: shmring.Ring, name: str) -> None:
    with pickle.loads(pickle.dumps(ring)):
        pass
    assert name in shmring.rings()


def test_a_replaced_ring_is_refused(name: str) -> None:
    with shmring.create(name, slots=1024) as ring:
        sent = pickle.dumps(ring)
        ring.unlink()
    with pytest.raises(shmring.RingNotFound, match="no ring"):
        pickle.loads(sent)
    with (
        shmring.create(name, slots=1024, temporary=True) as other,
        pytest.raises(shmring.RingNotFound, match="was replaced by another one"),
    ):
        pickle.loads(sent)
    assert other.closed


def test_only_path_uuid_and_flags_are_sent(ring: shmring.Ring) -> None:
    with ring.producer() as out:
        out.push(b"a payload" * 30)
    assert len(pickle.dumps(ring)) < 300
    assert b"payload" not in pickle.dumps(ring)


def test_a_closed_ring_and_what_holds_messages_are_not_sent(ring: shmring.Ring, name: str) -> None:
    closed = shmring.attach(name)
    closed.close()
    with pytest.raises(shmring.Closed, match="cannot be sent"):
        pickle.dumps(closed)
    with ring.producer() as out, ring.consumer("b") as inp:
        out.push(b"1")
        with inp.lease() as lease:
            for handle in (out, inp, lease):
                with pytest.raises(TypeError, match="cannot pickle"):
                    pickle.dumps(handle)


def test_a_copy_is_another_handle(ring: shmring.Ring) -> None:
    with copy.copy(ring) as other:
        assert other.info == ring.info
    assert not ring.closed
