"""Wrong input gets its own exception that says what to do, and the ring and the others go on."""

from __future__ import annotations

import os
import shutil
import struct
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

import shmring

MAGIC_AT, MAJOR_AT, CRC_AT, SLOTS_AT = 0, 8, 12, 16


@pytest.fixture(autouse=True)
def _bystanders(name):
    """A ring with traffic before and after; whatever happens to the test's own, it goes on."""
    with (
        shmring.create(f"{name}-bystander", slots=1024, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
    ):
        out.push(b"before")
        yield
        out.push(b"after")
        assert [inp.pop(timeout=0), inp.pop(timeout=0)] == [b"before", b"after"]


@pytest.fixture
def file(tmp_path):
    """A ring's file, for damaging."""
    path = tmp_path / "ring"
    with shmring.create(path=path, slots=1024) as ring, ring.producer() as out:
        out.push(b"x")
    return path


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


# --- sizes and options ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slots", [0, -1, -1024, 1, 512, 1000, 1025, 2**31 + 1, 2**62, 2**64, 10**30]
)
def test_impossible_number_of_slots_is_a_value_error_and_makes_nothing(name, slots):
    with pytest.raises(ValueError, match=rf"slots.*{abs(slots)}"):
        shmring.create(name, slots=slots)
    assert name not in shmring.rings()


@pytest.mark.parametrize("slots", [1024.0, "1024", None, True])
def test_slots_that_are_no_number_are_a_type_error(name, slots):
    with pytest.raises(TypeError, match="slots must be an int"):
        shmring.create(name, slots=slots)
    assert name not in shmring.rings()


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("participants", 0, "participants"),
        ("participants", 249, "participants"),
        ("participants", -5, "participants"),
        ("clock", "atomic", "'coarse', 'precise', 'off'"),
        ("clock", None, "clock must be one of"),
        ("mode", 0o7777, "mode"),
        ("mode", -1, "mode"),
        ("first_sequence", -1, "first_sequence"),
        ("first_sequence", 1 << 60, "first_sequence"),
    ],
)
def test_impossible_option_is_a_value_error_and_makes_nothing(name, option, value, text):
    with pytest.raises(ValueError, match=text):
        shmring.create(name, slots=1024, **{option: value})
    assert name not in shmring.rings()


def test_schema_that_is_none_is_a_type_error(name):
    with pytest.raises(TypeError, match=r"pyarrow\.Schema"):
        shmring.create(name, slots=1024, schema={"x": "int64"})
    assert name not in shmring.rings()


# --- names ------------------------------------------------------------------------------------


BAD_NAMES = ["", "a/b", "/a", "..", ".hidden", "-x", "a b", "ä", "a\n", "a\0b", "x" * 201]


@pytest.mark.parametrize("bad", BAD_NAMES)
@pytest.mark.parametrize(
    "call", [shmring.create, shmring.attach, shmring.open_or_create, shmring.unlink, shmring.gc]
)
def test_name_with_a_slash_or_the_like_is_a_value_error(call, bad):
    with pytest.raises(ValueError, match="cannot name a ring"):
        call(bad)


@pytest.mark.parametrize("good", ["a", "A-1_b.c", "_", "0", "x" * 200])
def test_names_at_the_limits_work(good, name):
    full = (good + name)[-200:].lstrip("-.")
    with shmring.create(full, slots=1024, temporary=True):
        assert full in shmring.rings()


def test_ring_has_a_name_or_a_path(tmp_path):
    for arguments in ({}, {"name": "a", "path": tmp_path / "a"}):
        with pytest.raises(ValueError, match="give one of the two"):
            shmring.attach(**arguments)
    with pytest.raises(TypeError, match="must be a str"):
        shmring.attach(b"a")


@pytest.mark.parametrize("bad", ["", "x" * 48, "a\0b"])
def test_impossible_branch_name_is_a_value_error(ring, bad):
    with pytest.raises(ValueError, match="branch's name"):
        ring.consumer(bad)
    assert ring.branches() == []


def test_branch_name_that_is_no_str_is_a_type_error(ring):
    with pytest.raises(TypeError, match="branch's name"):
        ring.consumer(7)


def test_branch_that_follows_an_unknown_one_is_refused_and_not_made(ring):
    with pytest.raises(shmring.BranchNotFound, match='"nobody"'):
        ring.consumer("a", after="nobody")
    assert ring.branches() == []


@pytest.mark.parametrize("start", ["first", None, -1, 1.5, True, 10**30])
def test_impossible_start_is_a_value_error(ring, start):
    with pytest.raises(ValueError, match="start"):
        ring.consumer("a", start=start)
    assert ring.branches() == []


def test_start_ahead_of_the_producers_is_a_value_error(ring):
    with pytest.raises(ValueError, match="ahead of the producers"):
        ring.consumer("a", start=1)
    assert ring.branches() == []


@pytest.mark.parametrize("option", ["wait", "when_full"])
def test_unknown_choice_names_the_known_ones(ring, option):
    with pytest.raises(ValueError, match=r"one of 'default'|one of 'block'"):
        ring.producer(**{option: "sometimes"})


# --- files that are no rings ------------------------------------------------------------------


def test_no_such_ring_says_where_it_looked_and_how_to_make_one(name):
    with pytest.raises(shmring.RingNotFound) as error:
        shmring.attach(name)
    assert f"/dev/shm/shmring.{name}" in str(error.value)
    assert f'shmring.create("{name}"' in str(error.value)
    assert isinstance(error.value, FileNotFoundError)
    with pytest.raises(shmring.RingNotFound):
        shmring.unlink(name)


def test_no_such_path(tmp_path):
    for call in (shmring.attach, shmring.unlink):
        with pytest.raises(shmring.RingNotFound, match="nothing-here"):
            call(path=tmp_path / "nothing-here")


def test_existing_ring_is_not_made_again(ring):
    with pytest.raises(shmring.RingExists, match=r"shmring\.attach") as error:
        shmring.create(ring.name, slots=1024)
    assert isinstance(error.value, FileExistsError)
    assert ring.name in shmring.rings()


def test_existing_file_is_not_made_a_ring(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    with pytest.raises(shmring.RingExists):
        shmring.create(path=path, slots=1024)
    assert path.read_text() == "keep me"


@pytest.mark.parametrize("size", [0, 1, 8, 100, 4095, 4096, 100_000])
def test_rubbish_is_not_a_ring(tmp_path, size):
    path = tmp_path / "rubbish"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    with pytest.raises(shmring.NotARing, match="rubbish"):
        shmring.attach(path=path)
    with pytest.raises(shmring.NotARing, match="left alone"):
        shmring.unlink(path=path)
    assert path.exists()


def test_zeroes_are_not_a_ring(tmp_path):
    path = tmp_path / "zeroes"
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(shmring.NotARing):
        shmring.attach(path=path)


def test_folder_fifo_device_and_link_are_not_rings(tmp_path, file):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(file)
    for path in (tmp_path, tmp_path / "fifo", "/dev/null", tmp_path / "link"):
        with pytest.raises(shmring.ShmringError):
            shmring.attach(path=path)
    for path in (tmp_path, tmp_path / "fifo", "/dev/null"):
        with pytest.raises(shmring.NotARing, match="left alone"):
            shmring.unlink(path=path)


def test_paths_in_errors_need_not_be_utf_8(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff")
    with pytest.raises(shmring.RingNotFound):
        shmring.attach(path=path)
    with (
        shmring.open_or_create(path=path, slots=1024, temporary=True),
        pytest.raises(shmring.RingExists, match=r"\\xff"),
    ):
        shmring.create(path=path)


@pytest.mark.parametrize("shift", [0, 1])
def test_error_that_is_cut_in_the_middle_of_a_character_is_raised(tmp_path, shift):
    path = tmp_path / ("x" * shift + "/".join(["\u00e9" * 100] * 8))
    with pytest.raises(shmring.RingNotFound):
        shmring.create(path=path)


def test_ring_of_another_version_says_which(file):
    overwrite(file, MAJOR_AT, struct.pack("<HH", 9, 3))
    with pytest.raises(shmring.VersionMismatch, match=r"layout 9\.3"):
        shmring.attach(path=file)
    shmring.unlink(path=file)


@pytest.mark.parametrize("keep", [100, 4096, 50_000, -4096, -1])
def test_truncated_ring_is_damaged(file, keep):
    size = file.stat().st_size
    os.truncate(file, keep if keep > 0 else size + keep)
    with pytest.raises((shmring.Damaged, shmring.NotARing), match="ring"):
        shmring.attach(path=file)


def test_ring_with_a_longer_file_is_damaged(file):
    os.truncate(file, file.stat().st_size + 4096)
    with pytest.raises(shmring.Damaged):
        shmring.attach(path=file)


@pytest.mark.parametrize("offset", [*range(MAJOR_AT + 2, 152, 3)])
def test_damaged_header_is_found_by_its_checksum(file, offset):
    byte = file.read_bytes()[offset]
    overwrite(file, offset, bytes([byte ^ 0x40]))
    with pytest.raises((shmring.Damaged, shmring.VersionMismatch), match="ring"):
        shmring.attach(path=file)


@pytest.mark.parametrize("slots", [0, 1, 2048, 2**40, 2**63, 2**64 - 1])
def test_header_with_a_right_checksum_and_wrong_sizes_is_damaged(file, slots):
    from shmring._shmring import crc32c

    header = bytearray(file.read_bytes()[:152])
    header[SLOTS_AT : SLOTS_AT + 8] = struct.pack("<Q", slots)
    header[MAGIC_AT : MAGIC_AT + 8] = bytes(8)
    header[CRC_AT : CRC_AT + 4] = bytes(4)
    crc = crc32c(bytes(header))
    overwrite(file, CRC_AT, struct.pack("<IQ", crc, slots))
    with pytest.raises(shmring.Damaged):
        shmring.attach(path=file)


def test_damaged_schema_is_found_by_its_checksum(tmp_path):
    path = tmp_path / "ring"
    schema = pa.schema([("a_field_to_be_found", pa.int64())])
    shmring.create(path=path, slots=1024, schema=schema).close()
    at = path.read_bytes().index(b"a_field_to_be_found")
    overwrite(path, at, b"b")
    with pytest.raises(shmring.Damaged, match="schema"):
        shmring.attach(path=path)


def test_copy_of_a_ring_is_a_ring_of_its_own(file, tmp_path):
    shutil.copy(file, tmp_path / "copy")
    with shmring.attach(path=tmp_path / "copy") as copy, copy.producer() as out:
        out.push(b"y")


# --- permission and space ---------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="wants to become another user")
def test_ring_of_another_user_is_refused(ring):
    """In a child, because one does not become root again."""
    os.chmod(ring.path, 0o666)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setuid(65534)
            shmring.attach(ring.name)
        except shmring.PermissionRefused as error:
            with shmring.attach(ring.name, foreign_owner=True) as trusted:
                code = 0 if "foreign_owner" in str(error) and trusted.slots == 1024 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="wants to become another user")
def test_ring_without_permission_is_refused(ring):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setuid(65534)
            for call in (shmring.attach, shmring.unlink):
                with pytest.raises(shmring.PermissionRefused, match=ring.name) as error:
                    call(ring.name)
                assert isinstance(error.value, PermissionError)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ring.name in shmring.rings()


def test_ring_that_shared_memory_cannot_hold_is_refused_at_creation(name):
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    slots = 1 << (free // 332).bit_length()
    if slots > 1 << 31:
        pytest.skip("/dev/shm holds the largest ring")
    with pytest.raises(shmring.NoSpace, match=f'"{name}".*(fewer slots|enlarge)') as error:
        shmring.create(name, slots=slots)
    assert isinstance(error.value, OSError)
    assert name not in shmring.rings()


# --- messages ---------------------------------------------------------------------------------


def test_message_larger_than_the_ring_is_refused_and_publishes_nothing(ring):
    with ring.producer() as out, ring.consumer("a") as inp:
        for call in (
            lambda: out.push(bytes(300 * ring.slots + 1)),
            lambda: out.claim(300 * ring.slots + 1),
            lambda: out.claim(1 << 40),
            lambda: out.push_many([b"x"] * (ring.slots + 1)),
            lambda: out.push_many(np.zeros((ring.slots + 1, 300), np.uint8)),
        ):
            with pytest.raises(shmring.MessageTooLarge):
                call()
        assert ring.claimed == 0
        out.push(bytes(300 * ring.slots), timeout=0)
        assert len(inp.pop(timeout=0)) == 300 * ring.slots


def test_row_longer_than_a_slot_is_refused_and_publishes_nothing(ring):
    with ring.producer() as out:
        for rows in (
            [b"ok", b"x" * 301],
            np.zeros((2, 301), np.uint8),
            pa.array([b"x" * 301], pa.binary(301)),
        ):
            with pytest.raises(shmring.MessageTooLarge, match="push"):
                out.push_many(rows)
        assert ring.claimed == 0


def test_message_over_a_slot_does_not_fit_a_scattered_ring(name):
    with (
        shmring.create(name, slots=1024, scattered=True, temporary=True) as ring,
        ring.producer() as out,
    ):
        for call in (lambda: out.push(bytes(301)), lambda: out.claim(301)):
            with pytest.raises(shmring.MessageTooLarge, match="scattered"):
                call()
        out.push(bytes(300))


@pytest.mark.parametrize("data", ["text", 7, None, 1.5, [1, 2], {"a": 1}, object()])
def test_message_that_is_not_bytes_is_a_type_error(ring, data):
    with ring.producer() as out:
        with pytest.raises(TypeError, match="a message is bytes"):
            out.push(data)
        assert ring.claimed == 0


def test_text_is_told_how_to_become_bytes(ring):
    with ring.producer() as out, pytest.raises(TypeError, match=r"encode\(\)"):
        out.push("text")


def test_message_that_is_not_contiguous_is_refused(ring):
    with ring.producer() as out, pytest.raises(BufferError, match="contiguous"):
        out.push(np.zeros(10, np.uint8)[::2])


@pytest.mark.parametrize(
    "rows",
    [
        b"bytes",
        "text",
        7,
        None,
        {"a": b"x"},
        iter([b"x"]),
        ["text"],
        [b"x", 7],
        np.zeros(10, np.uint8),
        np.zeros((2, 3, 4), np.uint8),
        np.zeros((2, 3), np.int8),
        np.zeros((2, 3), np.uint16),
        np.zeros((3, 4), np.uint8).T,
        np.zeros((3, 4), np.uint8)[::-1],
        pa.array([b"variable"], pa.binary()),
        pa.array([1, 2]),
        pa.chunked_array([pa.array([b"a"], pa.binary(1))]),
    ],
    ids=lambda rows: f"{type(rows).__name__}",
)
def test_rows_of_another_kind_are_a_type_error_and_publish_nothing(ring, rows):
    with ring.producer() as out:
        with pytest.raises(TypeError, match="row"):
            out.push_many(rows)
        assert ring.claimed == 0


def test_calls_with_wrong_arguments_are_type_errors(ring):
    with ring.producer() as out, ring.consumer("a") as inp:
        for call in (
            lambda: out.push(),
            lambda: out.push(b"a", 1),
            lambda: out.push(b"a", speed=1),
            lambda: out.push(b"a", timeout="soon"),
            lambda: out.push(b"a", kind="x"),
            lambda: out.push_many(),
            lambda: out.claim(),
            lambda: out.claim("10"),
            lambda: out.claim(10, nbytes=5),
            lambda: inp.pop(1.0),
            lambda: inp.pop(timeout=[]),
            lambda: inp.lease_many(),
            lambda: inp.lease_many("10"),
            lambda: out.done(),
            lambda: inp.done("1"),
        ):
            with pytest.raises(TypeError):
                call()
        assert ring.claimed == 0


def test_numbers_out_of_range_are_value_errors(ring):
    with ring.producer() as out, ring.consumer("a") as inp:
        for call in (
            lambda: out.push(b"a", kind=1),
            lambda: out.push(b"a", kind=2),
            lambda: out.push(b"a", kind=3),
            lambda: out.push(b"\xff\xff\xff\xff\0\0\0\1" + bytes(8), kind=4),
            lambda: out.push(b"", kind=5),
            lambda: out.push(b"a", kind=15),
            lambda: out.push(b"a", kind=256),
            lambda: out.push(b"a", kind=-1),
            lambda: out.claim(-1),
            lambda: out.claim(10, align=3),
            lambda: inp.lease_many(0),
            lambda: inp.lease_many(-1),
            lambda: inp.slot(-1),
            lambda: out.next(-1),
            lambda: out.next(0),
        ):
            with pytest.raises(ValueError, match=r"must|at least"):
                call()
        assert ring.claimed == 0


def test_types_are_made_by_the_ring_only():
    for made in (shmring.Producer, shmring.Consumer, shmring.Lease, shmring.Batch, shmring.Claim):
        with pytest.raises(TypeError):
            made()


# --- who may take part ------------------------------------------------------------------------


def test_second_single_producer_is_refused_and_the_first_goes_on(name):
    with (
        shmring.create(name, slots=1024, single_producer=True, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
    ):
        for attempt in (ring.producer, ring.sequence):
            with pytest.raises(shmring.SecondProducer, match=str(os.getpid())):
                attempt()
        out.push(b"x")
        assert inp.pop(timeout=0) == b"x"


def test_second_member_of_an_exclusive_branch_is_refused(ring):
    with ring.consumer("a", exclusive=True) as inp:
        with pytest.raises(shmring.SecondMember, match='"a"'):
            ring.consumer("a")
        inp.close()
        ring.consumer("a").close()


def test_65th_branch_is_refused_and_the_64_go_on(ring):
    with ring.producer() as out:
        branches = [ring.consumer(f"b{i}") for i in range(64)]
        for attempt in (lambda: ring.consumer("b64"), lambda: ring.subscribe("b64")):
            with pytest.raises(shmring.LimitReached, match="64 branches"):
                attempt()
        out.push(b"x")
        assert [inp.pop(timeout=0) for inp in branches] == [b"x"] * 64
        ring.drop_branch("b7")
        branches.pop(7).close()
        ring.consumer("b64").close()


def test_participant_without_a_seat_is_refused(name):
    with shmring.create(name, slots=1024, participants=3, temporary=True) as ring:
        with ring.producer(), ring.consumer("a"):
            for attempt in (
                ring.producer,
                lambda: ring.consumer("b"),
                lambda: shmring.attach(name),
            ):
                with pytest.raises(shmring.LimitReached, match="3 participants"):
                    attempt()
            assert [branch["name"] for branch in ring.branches()] == ["a"]
        ring.producer().close()


def test_batch_with_another_schema_is_refused(name):
    schema = pa.schema([("x", pa.int64())])
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        other = pa.record_batch({"y": ["a"]})
        with pytest.raises(shmring.SchemaMismatch, match=name):
            ring.arrow_writer().write(other)
        assert ring.rows() == []


# --- handles used after their end -------------------------------------------------------------


def test_closed_producer_says_so(ring):
    out = ring.producer()
    out.close()
    out.close()
    for call in (
        lambda: out.push(b"x"),
        lambda: out.push_many([b"x"]),
        lambda: out.push_many([]),
        lambda: out.claim(1),
        out.push_end,
        out.next,
        out.abort,
        out.available,
        lambda: out.done(0),
        lambda: out.slot(0),
    ):
        with pytest.raises(shmring.Closed, match=f'producer of ring "{ring.name}" was closed'):
            call()


def test_closed_consumer_says_so(ring):
    inp = ring.consumer("a")
    inp.close()
    inp.close()
    for call in (
        inp.pop,
        inp.lease,
        lambda: inp.lease_many(1),
        lambda: next(inp),
        inp.next,
        inp.available,
        lambda: inp.done(0),
        lambda: inp.slot(0),
        lambda: inp.position,
        lambda: inp.lag,
    ):
        with pytest.raises(shmring.Closed, match=f'consumer of ring "{ring.name}" was closed'):
            call()


def test_argument_that_closes_the_handle_while_it_is_read(ring):
    out, inp = ring.producer(), ring.consumer("a")

    class Closing:
        def __init__(self, handle):
            self.handle = handle

        def __float__(self):
            self.handle.close()
            return 1.0

        def __index__(self):
            self.handle.close()
            return 0

        def __arrow_c_array__(self, requested_schema=None):
            self.handle.close()
            return pa.array([b"x"], pa.binary(1)).__arrow_c_array__()

    for call in (
        lambda: out.push(b"x", timeout=Closing(out)),
        lambda: out.push_many(Closing(out)),
        lambda: inp.pop(timeout=Closing(inp)),
    ):
        with pytest.raises(shmring.Closed):
            call()
    for call in (
        lambda out, inp: out.claim(Closing(out)),
        lambda out, inp: out.slot(Closing(out)),
        lambda out, inp: out.done(Closing(out)),
        lambda out, inp: inp.done(Closing(inp)),
        lambda out, inp: inp.slot(Closing(inp)),
        lambda out, inp: inp.lease_many(1, timeout=Closing(inp)),
    ):
        with pytest.raises(shmring.Closed):
            call(ring.producer(), ring.consumer("a"))


def test_closed_errors_are_value_errors_too(ring):
    out = ring.producer()
    out.close()
    with pytest.raises(ValueError, match="closed"):
        out.push(b"x")


# --- a hostile peer ---------------------------------------------------------------------------


def test_damaged_entry_costs_its_own_row_only(ring):
    with ring.producer() as out, ring.consumer("a"):
        out.push_many([b"1", b"2", b"3"])
        control = ring.info.file_bytes - ring.slots * (300 + 32)
        overwrite(ring.path, control + 32 + 16, b"\xff\xff\xff\xff")  # the second one's length
        assert [row[6] for row in ring.rows()] == [b"1", b"3"]


def test_flipped_bit_is_found_by_the_checksum_and_stepped_over(name):
    with (
        shmring.create(name, slots=1024, checksum=True, temporary=True) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
    ):
        out.push_many([b"good", b"bad!", b"more"])
        overwrite(ring.path, ring.info.file_bytes - ring.slots * 300 + 300, b"x")
        assert inp.pop(timeout=0) == b"good"
        with pytest.raises(shmring.Damaged, match="checksum"):
            inp.pop(timeout=0)
        assert inp.pop(timeout=0) == b"more"


@pytest.mark.parametrize("seed", range(60))
def test_ring_overwritten_with_noise_gives_errors_and_no_crash(tmp_path, seed):
    """Noise over everything behind the header, while a reader is attached."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "ring"
    with (
        shmring.create(path=path, slots=1024) as ring,
        ring.producer() as out,
        ring.consumer("a") as inp,
        shmring.attach(path=path, read_only=True) as looker,
    ):
        for i in range(50):
            out.push(b"x" * (i * 10))
        size = path.stat().st_size
        if seed % 2:
            overwrite(path, 4096, rng.bytes(size - 4096))
        else:
            for _ in range(200):
                overwrite(path, int(rng.integers(4096, size - 1024 * 300)), rng.bytes(8))
        for call in (
            looker.rows,
            looker.branches,
            looker.seats,
            lambda: [inp.pop(timeout=0) for _ in range(100)],
            lambda: [inp.lease_many(100, timeout=0).lengths for _ in range(100)],
            lambda: out.push(b"y", timeout=0),
        ):
            with suppress(shmring.ShmringError, ValueError):
                call()


def test_a_reserved_kind_is_refused_and_the_claim_stays_open(ring):
    with ring.producer() as out, ring.consumer("a") as inp:
        with out.claim(3) as claim:
            for kind in (1, 2, 3, 4, 15):
                with pytest.raises(ValueError, match=f"kind {kind}|an end marker must be empty"):
                    claim.commit(kind=kind)
            claim.buffer[:] = b"abc"
            claim.commit(kind=16)
        out.push(b"", kind=2)  # what push_end() does
        assert inp.pop(timeout=0) == b"abc"
        with pytest.raises(shmring.EndOfStream):
            inp.pop(timeout=0)
