"""Making, finding, describing and closing rings."""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest
from programs import python

import shmring
from shmring.ring import handle as ring_module
from shmring.ring.records import CreateOptions


def test_created_ring_is_found_by_its_name(name):
    with shmring.create(name, slots=2048) as ring, shmring.attach(name) as same:
        assert ring.name == same.name == name
        assert ring.path == f"/dev/shm/shmring.{name}"
        assert same.slots == 2048
        assert name in shmring.rings()
    shmring.unlink(name)
    assert name not in shmring.rings()


def test_ring_at_a_path_is_an_ordinary_file(tmp_path):
    path = tmp_path / "orders.ring"
    with shmring.create(path=path, slots=1024) as ring, shmring.attach(path=path) as same:
        assert ring.name is None
        assert ring.path == same.path == str(path)
        with ring.producer() as out, same.consumer("a", start="earliest") as inp:
            out.push(b"x")
            assert inp.pop(timeout=120) == b"x"
    shmring.unlink(path=path)
    assert not path.exists()


def test_relative_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with shmring.create(path="r", slots=1024) as ring:
        monkeypatch.chdir("/")
        assert ring.path == str(tmp_path / "r")


@pytest.mark.parametrize("path", ["r/", "./r//", "r/.", "r/..", ".", "..", "/"])
def test_path_that_can_only_lead_to_a_folder_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for call in (shmring.create, shmring.attach, shmring.open_or_create, shmring.unlink):
        with pytest.raises(ValueError, match=r"has to end in the name of the ring's file"):
            call(path=path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["./r", ".//r", "f/../r", "./f/.././r"])
def test_paths_of_one_file_find_one_ring(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").mkdir()
    with shmring.create(path="r", slots=1024) as ring, shmring.attach(path=path) as same:
        assert ring.info.uuid == same.info.uuid


def test_path_leads_where_the_kernel_goes_at_a_symbolic_link(tmp_path):
    (tmp_path / "far" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "folder")
    with shmring.create(path=tmp_path / "link" / ".." / "r", slots=1024):
        assert (tmp_path / "far" / "r").exists()


def test_ring_at_a_path_without_a_slash_has_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with shmring.create(path="r", slots=1024) as ring, shmring.attach(path="r") as same:
        assert (ring.name, same.name) == (None, None)
        ring.subscribe("b")
        with ring.producer() as out:
            out.push_many(1024 * [b"x"])
            with pytest.raises(shmring.Full, match=re.escape(f"drop-branch {tmp_path}/r b`")):
                out.push(b"x", timeout=0)


def test_new_ring_is_private_unless_asked_otherwise(name, tmp_path):
    old = os.umask(0o077)
    try:
        with shmring.create(name, slots=1024, temporary=True) as ring:
            assert stat.S_IMODE(os.stat(ring.path).st_mode) == 0o600
        with shmring.create(path=tmp_path / "r", slots=1024, mode=0o644) as ring:
            assert stat.S_IMODE(os.stat(ring.path).st_mode) == 0o644
            assert ring.info.mode == 0o644
    finally:
        os.umask(old)


# CHANGE: edit this for a new option of a ring
def test_options_are_kept_in_the_ring(name):
    options = {
        "slots": 4096,
        "participants": 17,
        "single_producer": True,
        "checksum": True,
        "clock": "precise",
        "prefault": True,
        "first_sequence": 1 << 40,
    }
    with shmring.create(name, temporary=True, **options), shmring.attach(name) as ring:
        info = ring.info
        assert info.slots == 4096
        assert info.participants == 17
        assert info.single_producer
        assert info.checksum
        assert info.clock == "precise"
        assert info.first_sequence == ring.claimed == ring.floor == 1 << 40
        assert info.owner_uid == os.getuid()
        assert len(info.uuid) == 32


def test_open_or_create_takes_every_option_of_create():
    taken = inspect.signature(shmring.create).parameters.keys() - {"name", "path"}
    assert taken == CreateOptions.__annotations__.keys()


def test_open_or_create_makes_it_once(name):
    with (
        shmring.open_or_create(name, slots=2048) as first,
        shmring.open_or_create(name, slots=1024) as second,
        shmring.open_or_create(name) as third,
    ):
        assert second.slots == third.slots == 2048
        assert first.info.uuid == second.info.uuid == third.info.uuid
        # The refusal takes no participant's seat.
        for _ in range(2 * first.info.participants):
            with pytest.raises(shmring.RingExists, match="with 2048 slots, fewer than 4096"):
                shmring.open_or_create(name, slots=4096)
        for slots in (0, 1000, 1 << 40):
            with pytest.raises(ValueError, match="power of two from 1024 to 2147483648, not"):
                shmring.open_or_create(name, slots=slots)
    shmring.unlink(name)


def test_open_or_create_by_many_threads_at_once_gives_one_ring(name, thread):
    start = threading.Barrier(4)

    def make():
        start.wait()
        with shmring.open_or_create(name, slots=1024) as ring:
            return ring.info.uuid

    threads = [thread(make) for _ in range(4)]
    assert len({t.outcome() for t in threads}) == 1
    shmring.unlink(name)


def test_temporary_ring_goes_with_its_handle(name):
    ring = shmring.create(name, slots=1024, temporary=True)
    ring.close()
    assert name not in shmring.rings()
    ring = shmring.create(name, slots=1024, temporary=True)
    del ring
    gc.collect()
    assert name not in shmring.rings()


class Interrupted(BaseException):
    pass


def interrupted_after(steps, call):
    """Whether `call` needs more steps (calls and lines of the package) than these."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(os.path.dirname(shmring.__file__)):
            return None
        if event in ("call", "line"):
            count += 1
            if count > steps:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def test_temporary_ring_whose_close_is_interrupted_anywhere_goes_with_its_handle(name):
    steps = 0
    interrupted = True
    while interrupted:
        ring = shmring.create(name, slots=1024, temporary=True)
        interrupted = interrupted_after(steps, ring.close)
        steps += 1
        del ring
        if name in shmring.rings():  # a frame of the interruption keeps the handle
            gc.collect()
        assert name not in shmring.rings(), f"after {steps} steps"
    assert steps > 8


@pytest.mark.parametrize("step", [(ring_module._shmring, "make"), (ring_module, "ring_info")])
def test_temporary_ring_goes_that_a_signal_hits_when_it_is_made(name, monkeypatch, step):
    make = getattr(*step)

    def interrupted(*arguments, **options):
        make(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(*step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        shmring.create(name, slots=1024, temporary=True)
    assert name not in shmring.rings()


def test_temporary_ring_goes_at_exit(name, child):
    code = """
        import sys, shmring
        kept = shmring.create(sys.argv[1], slots=1024, temporary=True)
        lease = None
        with kept.producer() as out, kept.consumer("a") as inp:
            out.push(b"x")
            lease = inp.lease()
    """
    child(code, name).end()
    assert name not in shmring.rings()


def test_closed_ring_closes_its_producers_and_consumers(name):
    ring = shmring.create(name, slots=1024, temporary=True)
    out, inp = ring.producer(), ring.consumer("a")
    ring.close()
    assert ring.closed
    assert out.closed
    assert inp.closed
    for use in (lambda: out.push(b"x"), inp.pop, ring.producer, ring.branches, lambda: ring.floor):
        with pytest.raises(shmring.Closed, match=name):
            use()
    ring.close()
    out.close()
    inp.close()


def _interrupt():
    signal.raise_signal(signal.SIGINT)


def _fail():
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("how", "error"),
    [(_interrupt, KeyboardInterrupt), (_fail, OSError)],
    ids=["a signal", "an error"],
)
def test_ring_is_closed_though_its_unlink_is_interrupted(name, monkeypatch, how, error):
    ring = shmring.create(name, slots=1024, temporary=True)
    out = ring.producer()
    monkeypatch.setattr(ring_module, "remove", lambda path, uuid: how())
    with pytest.raises(error), ring:
        pass
    assert ring.closed
    assert out.closed
    monkeypatch.undo()
    assert shmring.gc(name) == [name]  # nobody takes part any more


def test_data_outlives_the_ring_that_was_closed(name):
    ring = shmring.create(name, slots=1024, temporary=True)
    out, inp = ring.producer(), ring.consumer("a")
    out.push(b"still here")
    lease = inp.lease()
    view = lease.data
    ring.close()
    lease.release()
    del ring, out, inp, lease
    gc.collect()
    assert bytes(view) == b"still here"


def test_read_only_ring_shows_but_takes_no_part(ring, out, inp):
    out.push(b"shown")
    participants = len(ring.participants())
    with shmring.attach(ring.name, read_only=True) as looker:
        assert looker.read_only
        assert [row[6] for row in looker.rows()] == [b"shown"]
        assert len(ring.participants()) == participants
        with pytest.raises(shmring.PermissionRefused, match="read-only"):
            looker.producer()
        with pytest.raises(shmring.PermissionRefused, match="read-only"):
            looker.consumer("b")


def test_read_only_ring_works_on_a_file_without_write_permission(ring):
    os.chmod(ring.path, 0o400)
    with shmring.attach(ring.name, read_only=True) as looker:
        assert looker.slots == 1024


def test_branches_and_seats_tell_who_does_what(ring):
    with (
        ring.producer("feeder") as out,
        ring.consumer("audit", exclusive=True) as audit,
        ring.consumer("late", after="audit", drop_oldest=True, ephemeral=True, name="slow"),
    ):
        for _ in range(3):
            out.push(b"abcd")
        audit.pop()
        first, second = ring.branches()
        assert (first["name"], first["position"], first["released"]) == ("audit", 1, 1)
        assert first["exclusive"]
        assert first["consumers"] == 1
        assert second["name"] == "late"
        assert second["after"] == ["audit"]
        assert second["drop_oldest"]
        assert second["ephemeral"]
        assert audit.position == 1
        assert audit.lag == 2
        assert audit.waited_ns == 0  # its message was there
        participants = {participant["name"]: participant for participant in ring.participants()}
        assert participants["feeder"]["role"] == "producer"
        assert participants["feeder"]["messages"] == 3
        assert participants["feeder"]["bytes"] == 12
        assert participants["feeder"]["pid"] == os.getpid()
        assert participants["feeder"]["alive"]
        assert participants["slow"]["role"] == "consumer"
        assert participants["slow"]["branch"] == "late"


def test_start_latest_earliest_and_at_a_sequence(ring):
    ring.subscribe("holds")
    with ring.producer() as out:
        for i in range(10):
            out.push(b"%d" % i)
        with (
            ring.consumer("new", start="latest") as new,
            ring.consumer("old", start="earliest") as old,
            ring.consumer("default") as default,
            ring.consumer("at", start=7) as at,
        ):
            out.push(b"10")
            assert new.pop() == b"10"
            assert old.pop() == default.pop() == b"0"
            assert at.pop() == b"7"


def test_dropped_branch_tells_its_consumer(ring):
    with ring.consumer("a") as inp:
        ring.drop_branch("a")
        with pytest.raises(shmring.BranchDropped, match=ring.name):
            inp.pop()
    with pytest.raises(shmring.BranchNotFound, match='"a"'):
        ring.drop_branch("a")


def test_rows_show_what_is_held_and_by_how_many(ring):
    with ring.producer() as out, ring.consumer("a") as a, ring.consumer("b"):
        out.push(b"one", kind=17)
        out.push(b"2" * 1000)
        a.pop()
        one, two = ring.rows(capacity=5)
        assert (one[0], one[1], one[3], one[4], one[5], one[6]) == (0, 0, 3, 1, 17, b"one")
        assert (two[0], two[1], two[3], two[4], two[6]) == (1, 1, 1000, 2, b"22222")
        assert ring.rows(1, 2)[0][6] == b"2" * 300


def test_schema_is_kept_for_late_readers(name):
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([pa.field("x", pa.int64(), metadata={"unit": "s"}), ("y", pa.string())])
    with (
        shmring.create(name, slots=1024, schema=schema, temporary=True),
        shmring.attach(name) as ring,
    ):
        assert ring.schema.equals(schema, check_metadata=True)
    with shmring.create(name, slots=1024, temporary=True) as ring:
        assert ring.schema is None


@pytest.mark.alone
def test_gc_passes_over_what_it_cannot_read(name):
    rubbish = Path(f"/dev/shm/shmring.{name}")
    rubbish.write_bytes(b"no ring at all")
    try:
        assert name not in shmring.gc()
        with pytest.raises(shmring.NotARing):
            shmring.gc(name)
    finally:
        rubbish.unlink()


def test_import_brings_what_a_ring_needs_and_nothing_more():
    code = """
        import sys
        before = set(sys.modules)
        import shmring
        print(*sorted(set(sys.modules) - before))
    """
    brought = python(code, check=True).stdout.split()
    ours = {module for module in brought if module.startswith("shmring.")}
    others = {module.partition(".")[0] for module in brought} - set(sys.stdlib_module_names)
    assert others <= {"shmring", "posix_ipc"}
    assert not {f"shmring.{room}" for room in shmring._LAZY_MODULES} & ours
    assert len(brought) < 80
    slow = {"asyncio", "concurrent", "ctypes", "email", "http", "multiprocessing", "ssl", "sqlite3"}
    assert not slow & set(brought)


def test_every_public_name_is_there():
    for public in shmring.__all__:
        assert getattr(shmring, public) is not None


def test_full_and_empty_are_those_of_queue():
    import queue

    assert issubclass(shmring.Full, queue.Full)
    assert issubclass(shmring.Empty, queue.Empty)


def test_what_trying_again_cannot_cure_is_no_kind_of_what_it_can():
    passing = (shmring.Full, shmring.Empty, shmring.Contended, shmring.Locked)
    names = [name for name in shmring.errors.__all__ if name != "ShmringError"]
    kinds = [getattr(shmring.errors, name) for name in names]
    assert [k for k in kinds if issubclass(k, passing)] == [k for k in kinds if k in passing]
