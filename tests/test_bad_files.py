"""Files that are no rings, that others may not use, or that others have damaged: each is told."""

from __future__ import annotations

import os
import shutil
import struct

import numpy as np
import pytest
from damage import overwrite
from layout_reader import HEADER, HEADER_BYTES, LayoutReader

import shmring
from shmring._shmring import crc32c

MAGIC_AT, MAJOR_AT, CRC_AT, SLOTS_AT = 0, 8, 12, 16

pytestmark = pytest.mark.usefixtures("bystanders")


@pytest.fixture
def file(tmp_path):
    """A ring's file, for damaging."""
    path = tmp_path / "ring"
    with shmring.create(path=path, slots=1024) as ring, ring.producer() as out:
        out.push(b"x")
    return path


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
    with pytest.raises(shmring.RingExists, match=r"exists already; attach to it") as error:
        shmring.create(ring.name, slots=1024)
    assert isinstance(error.value, FileExistsError)
    assert ring.name in shmring.rings()


@pytest.mark.parametrize("size", [0, 100, 100_000])
def test_rubbish_is_not_a_ring(tmp_path, size):
    path = tmp_path / "rubbish"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    with pytest.raises(shmring.NotARing, match="rubbish"):
        shmring.attach(path=path)
    with pytest.raises(shmring.NotARing, match="left alone"):
        shmring.unlink(path=path)
    for make in (shmring.create, shmring.open_or_create):
        with pytest.raises(shmring.NotARing):
            make(path=path, slots=1024)
    with pytest.raises(shmring.NotARing, match="rubbish is a file, and no ring: use another"):
        shmring.create(path=path, slots=1024)
    assert path.exists()


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


def test_ring_of_a_later_minor_version_is_read_with_fields_that_this_version_does_not_know(file):
    header = bytearray(file.read_bytes()[:HEADER_BYTES])
    struct.pack_into("<HH", header, MAJOR_AT, 1, 7)
    at = HEADER["reserved"][0]
    header[at:] = b"n" * (HEADER_BYTES - at)
    crc = crc32c(bytes(8) + header[8:12] + bytes(4) + header[16:])
    struct.pack_into("<I", header, 12, crc)
    overwrite(file, 0, header)
    with shmring.attach(path=file) as ring, ring.producer() as out, LayoutReader(file) as reader:
        assert ring.info.layout == (1, 7)
        assert reader.header["minor"] == 7
        out.push(b"y")
    overwrite(file, HEADER_BYTES - 1, b"d")
    with pytest.raises(shmring.Damaged, match="checksum"):
        shmring.attach(path=file)
    shmring.unlink(path=file)


@pytest.mark.parametrize("more", [-1, 4096])
def test_ring_of_another_size_than_it_says_is_damaged(file, more):
    os.truncate(file, file.stat().st_size + more)
    with pytest.raises(shmring.Damaged, match="ring"):
        shmring.attach(path=file)


def test_copy_of_a_ring_is_a_ring_of_its_own(file, tmp_path):
    shutil.copy(file, tmp_path / "copy")
    with shmring.attach(path=tmp_path / "copy") as copy, copy.producer() as out:
        out.push(b"y")


# --- permission and space ---------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="wants to become another user")
def test_ring_without_permission_is_refused(ring, in_child):
    def child():
        os.setuid(65534)
        for call in (shmring.attach, shmring.unlink):
            with pytest.raises(shmring.PermissionRefused, match=ring.name) as error:
                call(ring.name)
            assert isinstance(error.value, PermissionError)

    in_child(child)
    assert ring.name in shmring.rings()


# --- a hostile peer ---------------------------------------------------------------------------


@pytest.mark.ring(checksum=True)
def test_flipped_bit_is_found_by_the_checksum_and_stepped_over(ring, out, inp):
    out.push_many([b"good", b"bad!", b"more"])
    overwrite(ring.path, ring.info.file_bytes - ring.slots * 300 + 300, b"x")
    assert inp.pop(timeout=0) == b"good"
    with pytest.raises(shmring.Damaged, match="checksum"):
        inp.pop(timeout=0)
    assert inp.pop(timeout=0) == b"more"
