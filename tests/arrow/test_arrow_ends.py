"""A process that ends while it holds batches of a ring, or drops them at its end."""

from __future__ import annotations

from batches import BATCH, is_released

import shmring


def write(ring, count):
    """Batches for the branch that the child reads."""
    ring.subscribe("r", start="earliest")
    with ring.arrow_writer() as out:
        for _ in range(count):
            out.write(BATCH)


ENDS = """
    import sys, threading
    import polars as pl, shmring

    ring = shmring.attach(sys.argv[1])
    reader = ring.arrow_reader("r", start="earliest")
    kept = [reader.read(timeout=0) for _ in range(3)]
    kept[2] = pl.DataFrame(kept[2])
    class Late:
        def __del__(self):
            self.kept.clear()
    late = Late()
    late.kept = kept
    sys.late = late  # goes when hardly anything is left
    started = threading.Event()
    def forever(held):
        started.set()
        threading.Event().wait()
    threading.Thread(target=forever, args=(list(kept),), daemon=True).start()
    started.wait()
    print("ends")
"""


def test_a_process_ends_with_arrays_that_it_holds(arrow_ring, child):
    write(arrow_ring, 3)
    assert child(ENDS, arrow_ring.name).end() == "ends\n"
    with arrow_ring.consumer("r") as inp:  # held slots are free, or their messages come again
        left = 0
        while True:
            try:
                inp.lease(timeout=0).release()
            except shmring.Empty:
                break
            left += 1
    assert left <= 3
    assert is_released(arrow_ring)


HOLDS = """
    import sys
    import polars as pl, pyarrow as pa, shmring

    ring = shmring.attach(sys.argv[1])
    reader = ring.arrow_reader("r", start="earliest")
    here = reader.read(timeout=0)
    sys.frame = pl.DataFrame(reader.read(timeout=0))
    pa.batch = reader.read(timeout=0)
"""


def test_what_a_process_that_ends_still_holds_is_released(arrow_ring, child):
    write(arrow_ring, 3)
    child(HOLDS, arrow_ring.name).end()
    assert is_released(arrow_ring)


READS_ON = """
    import atexit, sys, threading

    go = threading.Event()
    gone = threading.Event()
    def last():  # runs after what shmring has registered
        go.set()
        gone.wait()
    atexit.register(last)

    import shmring

    ring = shmring.attach(sys.argv[1])
    reader = ring.arrow_reader("r", start="earliest")
    def read():
        go.wait()
        for _ in range(3):
            batch = reader.read(timeout=0)
            del batch
        print([branch["released"] == ring.claimed for branch in ring.branches()])
        gone.set()
    threading.Thread(target=read, daemon=True).start()
"""


def test_a_thread_that_reads_while_python_ends_lets_go(arrow_ring, child):
    write(arrow_ring, 3)
    assert child(READS_ON, arrow_ring.name).end() == "[True]\n"


ENDS_MEANWHILE = """
    import ctypes, sys
    import shmring
    from shmring._shmring import arrow_layout, map_batch

    sys.setswitchinterval(1000)
    c = ctypes.PyDLL(None)  # which keeps the GIL
    c.opendir.restype = c.readdir.restype = ctypes.c_void_p
    c.readdir.argtypes = c.closedir.argtypes = [ctypes.c_void_p]
    def threads():
        folder = c.opendir(b"/proc/self/task")
        names = set()
        while entry := c.readdir(folder):
            names.add(ctypes.string_at(entry + 19))
        c.closedir(folder)
        return names
    def state(thread):
        file = c.open(b"/proc/self/task/" + thread + b"/stat", 0)
        text = ctypes.create_string_buffer(4096)
        c.read(file, text, 4095)
        c.close(file)
        return text.value.rpartition(b") ")[2][:1]

    ring = shmring.attach(sys.argv[1])
    array = ctypes.create_string_buffer(80)  # as Arrow's C interface has it
    release = ctypes.c_void_p.from_buffer(array, 64)
    def move(address, schema):
        ctypes.memmove(array, address, 80)
        ctypes.c_void_p.from_address(address + 64).value = None
    with ring.consumer("r", start="earliest").lease(timeout=0) as lease:
        map_batch(lease, arrow_layout(ring.schema), 0, b"", False, False, move, ring.schema)
    del lease
    thread = ctypes.c_ulong()
    before = threads()
    c.pthread_create.argtypes = [ctypes.c_void_p] * 4
    c.pthread_create(ctypes.byref(thread), None, release.value, ctypes.addressof(array))
    while release.value:
        pass
    for other in threads() - before:
        while state(other) not in (b"S", b""):  # waits for the GIL; where there is none, it is gone
            pass
"""


def test_python_ends_after_threads_that_drop_arrays_just_then(arrow_ring, child):
    write(arrow_ring, 1)
    child(ENDS_MEANWHILE, arrow_ring.name).end()
    assert is_released(arrow_ring)
