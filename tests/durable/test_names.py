"""Queues and journals whose files lose their names while they are open."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Until
from queue_items import put

import shmring
from shmring.durable import AppendOnlyQueue, PersistentQueue
from shmring.durable.base import files
from shmring.durable.base.files import LockFile
from shmring.durable.journal import restore, truncate, verify
from shmring.errors import Closed, Damaged, Locked, NotARing, NotDurable


def _lock(path: Path) -> Path:
    return path / "lock" if path.is_dir() else Path(f"{path}.lock")


def _remove_the_lock(path: Path) -> None:
    _lock(path).unlink()


def _replace_the_lock(path: Path) -> None:
    _lock(path).unlink()
    _lock(path).touch()


def _rename(path: Path) -> None:
    path.rename(path.with_name("renamed"))


def _make_anew(path: Path) -> None:
    _rename(path)
    kind = PersistentQueue if path.with_name("renamed").is_dir() else AppendOnlyQueue
    with contextlib.suppress(Locked):  # the lock beside a file is the first one's still
        kind(path).close()


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _replace_by_a_copy(path: Path) -> None:
    file = path / "transaction.log" if path.is_dir() else path
    shutil.copy(file, f"{file}.copy")
    os.replace(f"{file}.copy", file)


CHANGES = [
    _remove_the_lock,
    _replace_the_lock,
    _rename,
    _make_anew,
    _remove,
    _replace_by_a_copy,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("durability", ["sync", "delayed"])
def test_a_persistent_queue_whose_files_have_gone_acknowledges_nothing(
    tmp_path: Path, change: Callable[[Path], None], durability: Any
) -> None:
    path = tmp_path / "q"
    queue = PersistentQueue(path, durability=durability, delay=100, log_size=500)
    with queue.session() as session:
        for _ in range(8):  # the queue would write its log anew
            put(session, b"before")
        queue.sync()
        change(path)
        before = {file: file.stat() for file in tmp_path.glob("q/*")}
        session.enqueue(b"after")
        for _ in range(8):
            with pytest.raises(Closed, match=rf"{path}.* was removed or replaced"):
                session.flush()
        with pytest.raises(Closed):
            queue.close()
    assert {file: file.stat().st_ino for file in tmp_path.glob("q/*")} == {
        file: stat.st_ino for file, stat in before.items()
    }


def test_a_persistent_queue_whose_data_file_has_gone_acknowledges_nothing(tmp_path: Path) -> None:
    queue = PersistentQueue(tmp_path)
    with queue.session() as session:
        put(session, bytes(100_000))
        (tmp_path / "data.0000000001").unlink()
        session.enqueue(bytes(100_000))
        with pytest.raises(Closed, match=r"data.0000000001 was removed or replaced"):
            session.flush()
    with pytest.raises(Closed):
        queue.close()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("use", ["flush", "compact", "reset"])
def test_an_append_only_queue_whose_file_has_gone_acknowledges_nothing(
    tmp_path: Path, change: Callable[[Path], None], use: str
) -> None:
    path = tmp_path / "q"
    with AppendOnlyQueue(path) as queue:
        put(queue, b"before")
        change(path)
        there = path.stat() if path.exists() else None
        queue.enqueue(b"after")
        with pytest.raises(Damaged, match=rf"{path}.* was removed or replaced"):
            getattr(queue, use)()
        with pytest.raises(Closed, match=rf"{path}.* was removed or replaced"):
            queue.flush()
    assert (path.stat() if path.exists() else None) == there


def test_two_owners_after_a_lock_was_removed_do_not_lose_what_the_second_flushed(
    tmp_path: Path,
) -> None:
    first, second = PersistentQueue(tmp_path), None
    with first.session() as session:
        put(session, b"first")
        (tmp_path / "lock").unlink()
        second = PersistentQueue(tmp_path)
        put(second, b"second")
        session.enqueue(b"lost")
        with pytest.raises(Closed, match="lock was removed or replaced"):
            session.flush()
    with pytest.raises(Closed):
        first.close()
    second.close()
    with PersistentQueue(tmp_path) as queue, queue.session() as session:
        assert session.dequeue_many(3) == [b"first", b"second"]


def test_a_path_that_leads_nowhere_is_refused_before_anything_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with shmring.create(name, slots=1024, temporary=True) as ring:
        for call in (ring.journal, PersistentQueue, AppendOnlyQueue, verify, truncate, restore):
            for path in ("", "a\0b"):
                with pytest.raises(ValueError, match="path must be the path of a file"):
                    call(path)
    assert not list(tmp_path.iterdir())


def test_a_journal_whose_lock_was_removed_stops(name: str, tmp_path: Path, until: Until) -> None:
    with shmring.create(name, slots=1024, temporary=True) as ring, ring.producer() as out:
        journal = ring.journal(tmp_path)
        out.push(b"before", durable=True)
        (tmp_path / "lock").unlink()
        with pytest.raises(NotDurable):
            out.push(b"after", durable=True)
        until(lambda: not journal.running)
        with pytest.raises(Damaged, match="lock was removed or replaced"):
            journal.close()


def test_an_owner_whose_lock_was_removed_deletes_no_file_of_the_next_ones(tmp_path: Path) -> None:
    first = PersistentQueue(tmp_path)
    with first.session() as s:
        put(s, bytes(50_000))
        s.dequeue()
        s.flush()
    (tmp_path / "lock").unlink()
    PersistentQueue(tmp_path).close()
    with PersistentQueue(tmp_path) as third, third.session() as s:
        put(s, b"x" * 50_000)  # in a file that has the name of the first one's
    first.close()
    with PersistentQueue(tmp_path) as q, q.session() as s:
        assert s.dequeue() == b"x" * 50_000


def test_a_lock_whose_file_was_removed_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lock")
    opened = files.open_above_standard
    others: list[LockFile] = []

    def open_and_lose(*call: Any) -> int:
        fd = opened(*call)
        monkeypatch.undo()
        os.unlink(path)
        others.append(LockFile(path, "it", 0))
        return fd

    monkeypatch.setattr(files, "open_above_standard", open_and_lose)
    with pytest.raises(Locked):
        LockFile(path, "it", 0)
    others[0].release()
    LockFile(path, "it", 0).release()


def test_links_to_a_folder_are_one_queue_and_a_link_that_moves_stops_it(tmp_path: Path) -> None:
    for folder in "one", "two":
        (tmp_path / folder).mkdir()
    link = tmp_path / "link"
    link.symlink_to("one")
    queue = PersistentQueue(link)
    with pytest.raises(Locked):
        PersistentQueue(tmp_path / "one")
    link.unlink()
    link.symlink_to("two")
    with queue.session() as session:
        session.enqueue(b"x")
        with pytest.raises(Closed, match="was removed or replaced"):
            session.flush()
    with pytest.raises(Closed):
        queue.close()


def test_links_that_bear_the_names_of_a_queues_other_files_lose_nothing(tmp_path: Path) -> None:
    kept, lock, draft = (tmp_path / name for name in ("kept", "queue.lock", "queue.tmp"))
    kept.write_text("precious")
    mode = kept.stat().st_mode
    lock.symlink_to(kept)
    with pytest.raises(NotARing, match=f"{lock} is a symbolic link"):
        AppendOnlyQueue(tmp_path / "queue")
    lock.unlink()
    for _ in range(2):  # made, and made anew
        draft.symlink_to(kept)
        with AppendOnlyQueue(tmp_path / "queue") as queue:
            draft.symlink_to(kept)
            queue.compact()
        (tmp_path / "queue").unlink()
    assert (kept.read_text(), kept.stat().st_mode) == ("precious", mode)
