"""Files that are no rings, that others may not use, or that others have damaged: each is told."""

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

pytestmark = pytest.mark.usefixtures("bystanders")


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


@pytest.mark.alone
def test_ring_that_shared_memory_cannot_hold_is_refused_at_creation(name):
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    slots = 1 << (free // 332).bit_length()
    if slots > 1 << 31:
        pytest.skip("/dev/shm holds the largest ring")
    with pytest.raises(shmring.NoSpace, match=f'"{name}".*(fewer slots|enlarge)') as error:
        shmring.create(name, slots=slots)
    assert isinstance(error.value, OSError)
    assert name not in shmring.rings()


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
            looker.participants,
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
