"""Files that Spark's sinks keep beside a ring are removed with the ring."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner
from companion import place

import shmring
from shmring.cli import app
from shmring.ring import names


@pytest.fixture
def keep():
    """Puts there what a query and a job leave when they are killed."""
    kept = []

    def put(ring: str) -> list[Path]:
        job = str(uuid.uuid4())
        found = [
            Path(place(ring, names.SINK, str(uuid.uuid4()))),
            Path(place(ring, names.STAGING, job)) / "0-1",
        ]
        for file in found:
            if file.parent != Path(ring).parent:
                file.parent.mkdir()
            file.write_text("rows")
        kept.extend(found)
        return found

    yield put
    assert not any(file.exists() for file in kept)


@pytest.fixture
def dead(name, child):
    """A ring whose only participant was killed."""
    process = child(
        "import sys, shmring; held = shmring.create(sys.argv[1]).producer(); print(1); input()",
        name,
    )
    process.line()
    process.kill()
    return f"/dev/shm/shmring.{name}"


def test_unlink_takes_it_along_and_leaves_other_rings_alone(name, keep):
    shmring.create(name).close()
    with shmring.create(f"{name}-more", temporary=True) as other:
        others = keep(other.path)
        keep(f"/dev/shm/shmring.{name}")
        shmring.unlink(name)
        assert all(file.exists() for file in others)


def test_gc_takes_it_along(name, keep, dead):
    keep(dead)
    assert shmring.gc(name) == [name]


def test_gc_of_a_ring_takes_what_that_one_has_left_and_no_other(name, keep):
    gone, others = (keep(f"/dev/shm/shmring.{ring}") for ring in (name, f"{name}-more"))
    assert shmring.gc(name) == []
    assert not any(file.exists() for file in gone)
    assert all(file.exists() for file in others)
    CliRunner().invoke(app, ["gc", f"{name}-more"], catch_exceptions=False)


@pytest.mark.alone
def test_gc_leaves_the_record_of_a_ring_that_stays(ring, keep):
    record, *_ = keep(ring.path)
    assert shmring.gc(ring.name) == []
    shmring.gc()
    assert record.exists()
    ring.close()  # a temporary one, which goes


@pytest.mark.alone
def test_gc_takes_what_rings_have_left_that_are_gone(name, keep):
    keep(f"/dev/shm/shmring.{name}")
    shmring.gc()


@pytest.mark.alone
@pytest.mark.skipif(os.getuid() != 0, reason="wants a file of another user")
def test_gc_leaves_what_another_user_has_left_unless_root_calls_it(name, keep, monkeypatch):
    record, staged = keep(f"/dev/shm/shmring.{name}")
    os.chown(staged.parent, 54321, -1)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 54321)
        assert str(record) not in names.sweep(None, None, dry_run=False).files
    assert record.exists()
    assert not staged.exists()
    os.chown(record, 54321, -1)
    shmring.gc()


@pytest.mark.skipif(os.getuid() != 0, reason="wants a file of another user")
def test_gc_takes_what_a_user_has_left_beside_a_ring_of_the_name_that_another_has_made_since(
    ring, keep, monkeypatch
):
    (own, staged), (theirs, _) = keep(ring.path), keep(ring.path)
    for path in (theirs, staged.parent):
        os.chown(path, 54321, -1)
    folder, file = os.path.split(ring.path)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert sorted(names.sweep_folder(folder, file)) == sorted(map(str, (theirs, staged.parent)))
    monkeypatch.undo()
    assert own.exists()
    ring.close()  # a temporary one, which goes


@pytest.mark.alone
def test_gc_of_the_command_line_does_it_too(name, keep):
    kept = keep(f"/dev/shm/shmring.{name}")
    dry = CliRunner().invoke(app, ["gc", "--dry-run", "--json"], catch_exceptions=False)
    assert all(file.exists() for file in kept)
    would = json.loads(dry.stdout)
    assert sum(name in path for path in would["would_remove"]) == len(kept)
    assert name not in would["would_sweep"]
    result = CliRunner().invoke(app, ["gc", "--json"], catch_exceptions=False)
    assert name not in json.loads(result.stdout)["swept"]
