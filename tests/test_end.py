"""One end marker ends every consumer of every branch, and leaves nothing for the next run."""

from __future__ import annotations

import pytest

import shmring


def test_loops_of_threads_that_share_a_consumer_all_end(out, inp, thread):
    for run in range(20):
        waiting = [thread(list, loop) for loop in [iter(inp) for _ in range(4)]]
        out.push_many([b"%d.%d" % (run, i) for i in range(10)])
        out.push_end()
        got = [message for loop in waiting for message in loop.outcome()]
        assert sorted(got) == sorted(b"%d.%d" % (run, i) for i in range(10))


def test_loop_that_has_ended_stays_ended_and_another_one_goes_on(out, inp):
    out.push_end()
    loop = iter(inp)
    assert list(loop) == []
    out.push(b"1")
    assert list(loop) == []
    out.push_end()
    assert list(inp) == [b"1"]


def test_marker_as_a_message_is_handed_back_by_who_abandons_it(ring):
    with ring.producer() as out, ring.consumer("a") as other:
        first = ring.consumer("a")
        first.end_markers = True
        out.push_end()
        marker = first.lease(timeout=0)
        assert marker.kind == 2
        first.abandon()
        with pytest.raises(shmring.EndOfStream):
            other.pop(timeout=0)
        with pytest.raises(shmring.Empty) as empty:
            other.pop(timeout=0)
        assert not isinstance(empty.value, shmring.EndOfStream)


def test_arrow_readers_of_one_branch_all_end(name, thread):
    import pyarrow as pa

    schema = pa.schema([("i", pa.int64())])
    with shmring.create(name, slots=1024, schema=schema, temporary=True) as ring:
        readers = [ring.arrow_reader("a") for _ in range(3)]
        streams = [thread(list, reader) for reader in readers]
        with ring.arrow_writer() as writer:
            for i in range(10):
                writer.write(pa.record_batch([pa.array([i])], schema=schema))
            writer.end()
        found = [batch for stream in streams for batch in stream.outcome()]
        assert sorted(batch["i"][0].as_py() for batch in found) == list(range(10))
        del found
        for reader in readers:
            reader.close()


def test_loop_over_a_reader_that_was_busy_at_an_end_that_another_loop_was_told_of_ends(name):
    import pyarrow as pa

    schema = pa.schema([("i", pa.int64())])
    with (
        shmring.create(name, slots=1024, schema=schema, temporary=True) as ring,
        ring.arrow_reader("a", timeout=0) as reader,
        ring.arrow_writer() as writer,
    ):
        slow, fast = iter(reader), iter(reader)
        for i in range(2):
            writer.write(pa.record_batch([pa.array([i])], schema=schema))
        writer.end()
        assert [len(next(loop)) for loop in (slow, fast)] == [1, 1]
        assert list(fast) == list(slow) == []
