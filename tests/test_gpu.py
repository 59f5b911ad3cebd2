"""Pinned rings, and copies to a GPU: a real one, or stand-ins for torch and its runtime."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import gpu_stand_in
import numpy as np
import pyarrow as pa
import pytest
from programs import ended, python

import shmring
from shmring.gpu import to_torch
from shmring.sidecars import Sidecar, SidecarClient

SLOTS = 1024
KB = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    before = sys.modules.get("torch")
    gpu = gpu_stand_in.make(tmp_path_factory.mktemp("runtime"))
    yield gpu
    if not gpu.is_real:
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before


@pytest.fixture
def gpu(chosen):
    yield chosen
    chosen.finish()
    shmring.gpu._copies.wait()
    gc.collect()
    assert chosen.last_error() == 0
    if not chosen.is_real:
        assert chosen.calls.count_harm() == 0
        assert chosen.calls.count_regions() == 0


@pytest.fixture
def stand_in(gpu):
    if gpu.is_real:
        pytest.skip("of the stand-in for the runtime")
    return gpu


@pytest.fixture
def ring(gpu, name):
    with shmring.create(name, slots=SLOTS, temporary=True) as ring, ring.pin():
        yield ring


def host(tensor) -> np.ndarray:
    return tensor.cpu().numpy()


# --- pinning --------------------------------------------------------------------------------------


def test_a_ring_is_pinned_once_until_it_is_unpinned(gpu, name):
    with shmring.create(name, slots=SLOTS, temporary=True) as ring:
        assert not ring.pinned
        with ring.pin() as same:
            assert same is ring
            assert ring.pinned
            with ring.pin():
                pass
            assert ring.pinned  # the second call did not pin it
        assert not ring.pinned
        ring.pin()
        ring.unpin()
        ring.unpin()
        assert not ring.pinned
        ring.pin()


@pytest.mark.parametrize("before", [False, True], ids=["unpinned", "pinned"])
def test_a_ring_stays_pinned_until_the_last_of_its_blocks_ends(gpu, name, before):
    with shmring.create(name, slots=SLOTS, temporary=True) as ring:
        if before:
            ring.pin()
        blocks = [ring.pin() for _ in range(3)]
        for block in blocks:
            block.__enter__()
        for block in blocks:  # the outer ones first
            assert ring.pinned
            block.__exit__(None, None, None)
        assert ring.pinned == before


def test_it_is_one_region_over_both_mappings(stand_in, ring):
    assert stand_in.calls.count_regions() == 1
    assert stand_in.calls.last_bytes() == 2 * SLOTS * 300
    assert stand_in.calls.last_flags() == 1


def test_a_ring_that_is_read_only_is_pinned_so(stand_in, ring):
    with shmring.attach(ring.name, read_only=True) as looker, looker.pin():
        assert stand_in.calls.last_flags() == 9


def test_closing_unpins_before_the_memory_goes_and_the_address_can_be_pinned_again(gpu, name):
    for _ in range(3):
        with shmring.create(name, slots=SLOTS, temporary=True) as ring:
            ring.pin()


def test_a_lease_keeps_a_closed_ring_pinned(gpu, name):
    ring = shmring.create(name, slots=SLOTS, temporary=True)
    ring.pin()
    inp = ring.consumer("a")
    ring.producer().push(KB)
    lease = inp.lease()
    ring.close()
    if not gpu.is_real:
        assert gpu.calls.count_regions() == 1
    assert bytes(host(lease.to_device())) == KB
    lease.release()


def test_a_closed_ring_is_not_pinned(gpu, name):
    ring = shmring.create(name, slots=SLOTS, temporary=True)
    ring.close()
    with pytest.raises(shmring.Closed):
        ring.pin()


def test_a_refusal_is_told_and_leaves_no_error(stand_in, name):
    with shmring.create(name, slots=SLOTS, temporary=True) as ring:
        stand_in.calls.refuse_next()
        with pytest.raises(
            shmring.GpuError, match=r"cannot pin .*invalid argument \(cuda error 1\)"
        ):
            ring.pin()
        assert not ring.pinned
        assert stand_in.last_error() == 0


def test_a_forked_child_has_it_unpinned_and_does_not_unpin_the_parents(gpu, ring, in_child):
    def child():
        assert not ring._handle.pinned
        ring.close()
        assert gpu.is_real or gpu.calls.count_regions() == 1

    in_child(child)
    assert ring.pinned


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import gpu_stand_in, pathlib, shmring
gpu = gpu_stand_in.{make}
ring = shmring.create({name!r}, slots=1024, temporary=True)
ring.pin()
out, inp = ring.producer(), ring.consumer("a", start="earliest")
out.push(b"x" * 1000)
tensor = inp.lease().to_device()
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "ring = None", "sys.ring = ring"])
def test_the_interpreters_end_unpins(gpu, name, end):
    make = "make(None)" if gpu.is_real else f"StandIn(pathlib.Path({str(gpu.library)!r}))"
    script = SCRIPT.format(tests=str(Path(__file__).parent), make=make, name=name, end=end)
    done = python(script, env={**os.environ, "GPU_RUNTIME_REPORT": "1"})
    assert (done.returncode, done.stderr) == (0, "" if gpu.is_real else "0 regions, 0 harm\n")


def test_without_a_runtime_the_error_says_what_is_missing(name):
    script = f"import shmring; shmring.create({name!r}, slots=1024, temporary=True).pin()"
    done = python(script, env={**os.environ, "LD_LIBRARY_PATH": ""})
    if done.returncode == 0:
        pytest.skip("a runtime is on the loader's path")
    assert "GpuError: no runtime of a GPU is loaded or found here" in done.stderr
    assert "import torch or cupy first" in done.stderr


def test_where_no_map_can_be_read_the_error_says_what_is_missing(stand_in, monkeypatch):
    def refuse(_):
        raise PermissionError

    monkeypatch.setattr(shmring.gpu.Path, "read_text", refuse)
    monkeypatch.setattr(shmring.gpu, "_VERSIONS", ())  # the loader may know one
    with pytest.raises(shmring.GpuError, match="no runtime of a GPU is loaded or found"):
        shmring.gpu._runtime.__wrapped__()


def test_gpu_check_without_a_gpu_says_so(stand_in):
    done = ended("make", "gpu-check", f"PYTHON={sys.executable}", cwd=Path(__file__).parents[1])
    assert done.returncode == 2
    assert "No module named 'torch'" in done.stderr or "torch finds no GPU here" in done.stderr


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_on_the_device_has_the_bytes(gpu, out, inp):
    for length in (0, 1, 300, 40_000):
        message = os.urandom(length)
        out.push(message)
        with inp.lease() as lease:
            assert bytes(host(lease.to_device())) == message


def test_a_message_over_the_end_of_the_ring_is_one_copy(gpu, out, inp):
    for _ in range(5):  # 300 slots each: the fourth wraps around the end
        message = os.urandom(90_000)
        out.push(message)
        with inp.lease() as lease:
            copy = lease.to_device()
        assert bytes(host(copy)) == message


def test_rows_of_a_batch_become_one_tensor(gpu, out, inp):
    rows = np.random.default_rng(1).integers(0, 256, (64, 300), dtype=np.uint8)
    out.push_many(rows)
    with inp.lease_many(64) as batch:
        copy = batch.to_device()
    assert np.array_equal(host(copy), rows)


def test_a_released_lease_holds_its_slots_until_the_copy_is_done(gpu, out, inp):
    message = os.urandom(SLOTS * 300 // 2)
    gpu.hold()
    out.push(message)
    with inp.lease() as lease:
        copy = lease.to_device()
    del lease
    out.push(bytes(len(message)))
    with pytest.raises(shmring.Full):
        out.push(bytes(len(message)), timeout=0)
    if not gpu.is_real:
        gpu.finish()
    out.push(bytes(len(message)), timeout=60)  # nobody calls for it: a thread lets go
    gpu.finish()
    assert bytes(host(copy)) == message


def test_a_copy_whose_event_cannot_be_recorded_is_done_before_the_error_is_raised(
    stand_in, out, inp
):
    stand_in.hold()
    out.push(KB)
    stand_in.calls.refuse_next_record()
    with inp.lease() as lease, pytest.raises(shmring.GpuError, match="cannot copy"):
        lease.to_device()
    assert stand_in.calls.count_under_way() == 0  # nothing reads the slots, or writes the tensor
    stand_in.finish()


def test_one_thread_waits_for_all_copies(gpu, out, inp):
    gpu.hold()
    out.push_many([bytes([i]) * 100 for i in range(20)])
    copies = []
    for _ in range(20):
        with inp.lease() as lease:
            copies.append(lease.to_device())
    assert [t.name for t in threading.enumerate()].count("shmring-gpu") == 1
    gpu.finish()
    for i, copy in enumerate(copies):
        assert bytes(host(copy)) == bytes([i]) * 100


def test_unpin_waits_for_copies(gpu, ring, out, inp, thread):
    gpu.hold()
    out.push(KB)
    with inp.lease() as lease:
        copy = lease.to_device()
    unpinning = thread(ring.unpin)
    if not gpu.is_real:
        assert ring.pinned
    gpu.finish()
    unpinning.outcome()
    assert not ring.pinned
    assert bytes(host(copy)) == KB


def test_unpin_waits_for_no_copy_that_is_begun_later(
    stand_in, ring, out, inp, name, thread, patience
):
    done = threading.Event()
    copies = []

    def always_one_under_way():
        with shmring.create(name + "-other", slots=SLOTS, temporary=True) as other:
            out, inp = other.producer(), other.consumer("a", start="earliest")
            while not done.is_set():
                out.push(KB, timeout=patience)
                with inp.lease() as lease:
                    copies.append(lease.to_device())
                stand_in.calls.finish_all_but_the_last()

    out.push(KB)
    stand_in.hold()
    with inp.lease() as lease:
        copy = lease.to_device()
    others = thread(always_one_under_way)
    try:
        thread(ring.unpin).outcome()
    finally:
        done.set()
        others.outcome()
        stand_in.finish()
    assert bytes(host(copy)) == KB


def test_a_copy_after_which_no_thread_starts_is_let_go_by_unpin(
    gpu, ring, out, inp, thread, monkeypatch
):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(shmring.gpu, "_copies", shmring.gpu._Copies())
    out.push(KB)
    with inp.lease() as lease, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            lease.to_device()
    thread(ring.unpin).outcome()
    assert not ring.pinned


def test_a_copy_that_is_refused_is_told_and_the_lease_let_go(stand_in, out, inp):
    out.push(KB)
    lease = inp.lease()
    stand_in.calls.refuse_next()
    with pytest.raises(
        shmring.GpuError, match="cannot copy 1024 bytes to the GPU: invalid argument"
    ):
        lease.to_device()
    assert stand_in.last_error() == 0
    lease.release()
    out.push(bytes(SLOTS * 300 - 300), timeout=60)


def test_a_ring_that_is_not_pinned_is_copied_too(gpu, name):
    with shmring.create(name, slots=SLOTS, temporary=True) as ring:
        inp = ring.consumer("a")
        ring.producer().push(KB)
        with inp.lease() as lease:
            assert lease.__dlpack_device__() == (1, 0)
            assert bytes(host(lease.to_device())) == KB


def test_torch_says_that_a_lease_is_pinned(gpu, out, inp):
    if not gpu.is_real:
        pytest.skip("of a real GPU")
    out.push(KB)
    with inp.lease() as lease:
        with pytest.warns(UserWarning, match="not writable"):
            tensor = gpu.torch.frombuffer(lease.data, dtype=gpu.torch.uint8)
        assert tensor.is_pinned()
        assert gpu.torch.from_dlpack(lease).is_pinned()
        del tensor


# --- DLPack -----------------------------------------------------------------------------------


def test_dlpack_gives_the_ring_memory_read_only_and_holds_the_lease(gpu, out, inp):
    out.push(KB)
    with inp.lease() as lease:
        assert lease.__dlpack_device__() == (1, 0)
        array = np.from_dlpack(lease)
    assert bytes(array) == KB
    assert not array.flags.writeable
    with pytest.raises(shmring.Full):
        out.push(bytes(SLOTS * 300 - 300), timeout=0)
    del array
    out.push(bytes(SLOTS * 300 - 300), timeout=0)


def test_dlpack_of_a_batch_has_its_rows(gpu, out, inp):
    rows = np.random.default_rng(2).integers(0, 256, (7, 300), dtype=np.uint8)
    out.push_many(rows)
    with inp.lease_many(7) as batch:
        assert np.array_equal(np.from_dlpack(batch), rows)


def test_dlpack_refuses_what_it_cannot_promise(gpu, out, inp):
    out.push(KB)
    with inp.lease() as lease:
        for device in (1, 3):  # a capsule that nobody takes
            assert lease.__dlpack__(max_version=(1, 1), dl_device=(device, 0))
        for options in ({}, {"max_version": (0, 8)}, {"copy": True}, {"dl_device": (2, 0)}):
            with pytest.raises(BufferError, match="a lease is host memory"):
                lease.__dlpack__(**{"max_version": (1, 0), **options} if options else {})
        for options in ({"max_version": [1, 0]}, {"max_version": 1}, {"dl_device": "cpu"}):
            with pytest.raises(TypeError, match=f"{next(iter(options))} must be a tuple"):
                lease.__dlpack__(**options)
    with pytest.raises(shmring.Closed):
        lease.__dlpack__(max_version=(1, 0))


# --- Arrow ----------------------------------------------------------------------------------------

COLUMNS = {
    "i": pa.array(range(1000), pa.int64()),
    "x": pa.array(np.linspace(0, 1, 1000), pa.float32()),
    "embedding": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4000.0)), 4),
}
# Lists whose type has no size, like Spark's arrays.
LISTS = pa.ListArray.from_arrays(pa.array(range(0, 4001, 4), pa.int32()), pa.array(np.arange(4e3)))


def test_a_batch_of_numbers_is_one_copy_and_a_tensor_a_column(gpu, ring):
    batch = pa.record_batch(COLUMNS)
    gpu.hold()
    before = 0 if gpu.is_real else gpu.calls.count_copies()
    with ring.arrow_reader("a") as reader, ring.arrow_writer(batch.schema) as writer:
        writer.write(batch)
        tensors = to_torch(next(iter(reader)))
    gpu.finish()
    if not gpu.is_real:
        assert gpu.calls.count_copies() - before == 1
    assert list(tensors) == ["i", "x", "embedding"]
    assert np.array_equal(host(tensors["i"]), np.arange(1000))
    assert np.array_equal(host(tensors["x"]), np.linspace(0, 1, 1000, dtype=np.float32))
    assert np.array_equal(host(tensors["embedding"]), np.arange(4000.0).reshape(1000, 4))


def test_slices_and_batches_of_other_memory_and_without_rows(gpu):
    nested = pa.array([[[k], [k + 1]] for k in range(1000)], pa.large_list(pa.list_(pa.int32())))
    batch = pa.record_batch({**COLUMNS, "lists": LISTS, "nested": nested})
    for part in (batch, batch.slice(10, 100), batch.slice(1), batch.slice(0, 0)):
        tensors = to_torch(part)
        gpu.finish()
        for name, column in zip(part.schema.names, part.columns, strict=True):
            assert host(tensors[name]).tolist() == column.to_pylist()


def test_what_is_no_tensor_of_numbers_is_refused(gpu):
    with pytest.raises(ValueError, match='column "x" has 1 nulls'):
        to_torch(pa.record_batch({"x": [1, None]}))
    for wrong in (["a"], [True]):
        with pytest.raises(TypeError, match='column "x" is of'):
            to_torch(pa.record_batch({"x": wrong}))
    with pytest.raises(ValueError, match='two columns are called "x"'):
        to_torch(pa.record_batch([[1], [2]], names=["x", "x"]))
    with pytest.raises(ValueError, match='column "x" has lists of 0 to 2 values'):
        to_torch(pa.record_batch({"x": [[1, 2], []]}))
    with pytest.raises(ValueError, match='column "x" has 1 nulls'):
        to_torch(pa.record_batch({"x": [[1], None]}))
    with pytest.raises(ValueError, match='column "x" has 1 nulls'):
        to_torch(pa.record_batch({"x": [[1], [None]]}))


# --- a sidecar ------------------------------------------------------------------------------------

MODEL = """
import pathlib, sys
import numpy as np
import pyarrow as pa
sys.path.insert(0, {tests!r})
import gpu_stand_in
from shmring.gpu import to_torch

class Model:
    def __init__(self):
        self.gpu = gpu_stand_in.{make}

    def __call__(self, batch):
        address = batch["x"].buffers()[1].address
        tensors = to_torch(batch)
        self.gpu.finish()
        if self.gpu.is_real:
            values = memoryview(batch["x"].buffers()[1])
            pinned = self.gpu.torch.frombuffer(values, dtype=self.gpu.torch.int64).is_pinned()
        else:
            self.gpu.calls.is_registered.argtypes = [__import__("ctypes").c_void_p]
            pinned = self.gpu.calls.is_registered(address)
        x = tensors["x"].cpu().numpy()
        return pa.record_batch({{"x": np.array(x), "pinned": [bool(pinned)] * len(x)}})
"""


@pytest.mark.parametrize("pin", [True, False])
def test_a_sidecars_worker_pins_its_request_ring(gpu, name, tmp_path, monkeypatch, pin):
    make = "make(None)" if gpu.is_real else f"StandIn(pathlib.Path({str(gpu.library)!r}))"
    module = f"model_{pin}".lower()
    text = MODEL.format(tests=str(Path(__file__).parent), make=make)
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    batch = pa.record_batch({"x": list(range(1000))})
    with (
        Sidecar(f"{module}:Model", name=name, slots=SLOTS * 4, pin=pin),
        SidecarClient(name) as client,
    ):
        (answer,) = client.map([batch])
    assert answer["x"].to_pylist() == list(range(1000))
    assert set(answer["pinned"].to_pylist()) == {pin}


def test_a_worker_without_a_runtime_does_not_start(name, capfd):
    with (
        pytest.raises(shmring.SidecarUnavailable),
        Sidecar("functions:identity", name=name, slots=SLOTS, pin=True),
    ):
        pytest.skip("a runtime is on the loader's path")
    assert "no runtime of a GPU is loaded or found" in capfd.readouterr().err
