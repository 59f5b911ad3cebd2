"""Files of rings: who makes them, who removes them, and what else lies there."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

import pytest
from companion import place
from damage import overwrite

import shmring
from shmring.ring import names

ADMIN_LOCK = 8  # the byte: docs/layout.md
VERSION = 8


def path_of(name: str) -> Path:
    return Path(f"/dev/shm/shmring.{name}")


@pytest.fixture
def named(name):
    """A name under which tests leave rings."""
    yield name
    path_of(name).unlink(missing_ok=True)


# --- making -----------------------------------------------------------------------------------


def test_creation_that_fails_leaves_another_ones_file(named):
    path_of(named).write_bytes(b"")
    with pytest.raises(shmring.NotARing):
        shmring.create(named, slots=1024)
    assert path_of(named).read_bytes() == b""
    with pytest.raises(shmring.NotARing):
        shmring.open_or_create(named)


# --- removing -----------------------------------------------------------------------------------


def test_close_of_a_temporary_ring_leaves_the_one_that_has_its_name_since(named):
    first = shmring.create(named, slots=1024, temporary=True)
    shmring.unlink(named)
    with shmring.create(named, slots=1024) as second:
        kept = Path(place(second.path, names.SINK, str(uuid.uuid4())))
        kept.write_text("record")
        first.close()
        with shmring.attach(named) as again:
            assert again.info.uuid == second.info.uuid
        assert kept.exists()
    shmring.unlink(named)
    assert not kept.exists()


def test_ring_unlinks_itself_and_no_other(named):
    with shmring.create(named, slots=1024) as first:
        first.unlink()
        assert not path_of(named).exists()
        with shmring.create(named, slots=1024), pytest.raises(shmring.RingNotFound):
            first.unlink()
        assert path_of(named).exists()


@pytest.mark.parametrize("has_name", [True, False], ids=["a name", "a path"])
def test_ring_that_is_used_is_not_removed(named, tmp_path, has_name):
    where = {"name": named} if has_name else {"path": tmp_path / "a.ring"}
    ring = shmring.create(**where, slots=1024)
    kept = Path(place(ring.path, names.SINK, str(uuid.uuid4())))
    kept.write_text("record")

    def is_used(living):
        with open(ring.path, "r+b") as file, pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, ADMIN_LOCK)  # nobody can join
        return [one["name"] for one in living] == ["attached"]

    assert not names.remove(ring.path, is_used=is_used)
    shmring.attach(**where).close()
    assert kept.exists()
    ring.close()
    assert names.remove(ring.path, is_used=bool)
    assert not os.path.exists(ring.path)
    assert not kept.exists()


def test_ring_that_nobody_can_join_any_more_is_removed(named):
    """Else who serves it could not be started again: its file would stand in the way."""
    with shmring.create(named, slots=1024) as ring:
        overwrite(ring.path, VERSION, b"\xff")
        with pytest.raises(shmring.NotARing):
            shmring.attach(named)
        assert names.remove(ring.path, bytes.fromhex(ring.info.uuid), is_used=bool)
    with shmring.create(named, slots=1024) as ring:
        pass
    os.truncate(ring.path, 4096)
    assert names.remove(ring.path, is_used=bool)
    assert not os.path.exists(ring.path)


def test_removal_fails_with_the_question_whether_the_ring_is_used(ring):
    def fail(living):
        raise KeyError(len(living))

    with pytest.raises(KeyError, match="1"):
        names.remove(ring.path, is_used=fail)
    with shmring.attach(path=ring.path) as same:
        assert len(same.participants()) == 2


def test_gc_of_a_ring_in_a_file_touches_nothing_else_in_its_folder(tmp_path, child):
    ring = tmp_path / "ring"
    others = {
        "notes": b"keep me",
        ".shmring-new-notes": b"",
        f".shmring-new-{uuid.uuid4()}": bytes(4096),
        f".shmring-sink-other-{uuid.uuid4()}x": b"",
        f".shmring-staging-{uuid.uuid4()}": b"",
    }
    for other, data in others.items():
        (tmp_path / other).write_bytes(data)
    victim = child(
        "import sys, shmring; ring = shmring.create(path=sys.argv[1]); print(1); input()", ring
    )
    victim.line()
    victim.kill()
    assert shmring.gc(path=ring) == [str(ring)]
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == others


# --- rows staged by drivers -----------------------------------------------------------------------


@pytest.fixture
def staged(ring):
    """Makes a job's folder beside the ring."""

    def make(kind: str, owner: str) -> Path:
        folder = Path(place(ring.path, kind, owner))
        folder.mkdir()
        (folder / "0-1").write_bytes(b"rows")
        return folder

    return make


@pytest.mark.alone
def test_gc_removes_what_dead_drivers_have_staged_beside_a_living_ring(ring, staged):
    gone = staged(names.STAGING, str(uuid.uuid4()))
    living = str(uuid.uuid4())
    stays = staged(names.STAGING, living)
    with ring.producer(f"spark write {living}"):
        assert shmring.gc(ring.name) == []
        assert not gone.exists()
        assert stays.exists()
    shmring.gc()  # the driver has left without tidying up
    assert not stays.exists()


@pytest.mark.alone
def test_gc_asks_the_kernel_whether_a_driver_lives(ring, staged, child):
    job = str(uuid.uuid4())
    code = """
        import sys, shmring
        participant = shmring.attach(sys.argv[1]).producer(f"spark write {sys.argv[2]}")
        print(1), input()
    """
    driver = child(code, ring.name, job)
    driver.line()
    folder = staged(names.STAGING, job)
    shmring.gc()
    assert folder.exists()
    driver.kill()
    shmring.gc()
    assert not folder.exists()
