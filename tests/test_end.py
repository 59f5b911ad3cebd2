"""One end marker ends every consumer of every branch, and leaves nothing for the next run."""

from __future__ import annotations

import pytest

import shmring

READER = """
    import sys, shmring
    name, branch, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with shmring.attach(name) as ring, ring.consumer(branch) as inp:
        print("ready")
        for _ in range(runs):
            print(" ".join(sorted(message.decode() for message in inp)))
"""


def test_processes_of_every_branch_end_by_one_marker_run_after_run(ring, child):
    branches = {"shared": 3, "alone": 1}
    for branch in branches:
        ring.subscribe(branch)
    ring.subscribe("behind", after="alone")
    branches["behind"] = 2
    readers = {
        branch: [child(READER, ring.name, branch, 3) for _ in range(consumers)]
        for branch, consumers in branches.items()
    }
    for group in readers.values():
        for reader in group:
            assert reader.line() == "ready"
    with ring.producer() as out:
        for run in range(3):
            for i in range(50):
                out.push(b"%d.%d" % (run, i))
            out.push_end()
            for group in readers.values():
                got = " ".join(reader.line() for reader in group).split()
                assert sorted(got) == sorted(f"{run}.{i}" for i in range(50))
    for group in readers.values():
        for reader in group:
            assert reader.end() == ""


def test_run_that_follows_at_once_is_not_mixed_with_the_one_before(ring, child):
    """A consumer that is slow hears of each end, however many runs have passed meanwhile."""
    readers = [child(READER, ring.name, "w", 5) for _ in range(3)]
    for reader in readers:
        assert reader.line() == "ready"
    with ring.producer() as out:
        for run in range(5):
            for i in range(40):
                out.push(b"%d.%d" % (run, i))
            out.push_end()
    lines = [[reader.line() for _ in range(5)] for reader in readers]
    for run in range(5):
        got = " ".join(line[run] for line in lines).split()
        assert sorted(got) == sorted(f"{run}.{i}" for i in range(40))


def test_loops_of_threads_that_share_a_consumer_all_end(ring, thread):
    with ring.producer() as out, ring.consumer("a") as inp:
        for run in range(20):
            waiting = [thread(list, loop) for loop in [iter(inp) for _ in range(4)]]
            out.push_many([b"%d.%d" % (run, i) for i in range(10)])
            out.push_end()
            got = [message for loop in waiting for message in loop.outcome()]
            assert sorted(got) == sorted(b"%d.%d" % (run, i) for i in range(10))


def test_loop_that_has_ended_stays_ended_and_another_one_goes_on(ring):
    with ring.producer() as out, ring.consumer("a") as inp:
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
        assert first.lease(timeout=0).kind == 2
        first.abandon()
        with pytest.raises(shmring.EndOfStream):
            other.pop(timeout=0)
        with pytest.raises(shmring.Empty) as empty:
            other.pop(timeout=0)
        assert not isinstance(empty.value, shmring.EndOfStream)


def test_marker_that_another_consumer_came_to_ends_who_takes_markers_as_messages(ring):
    with ring.producer() as out, ring.consumer("a") as inp, ring.consumer("a") as passing:
        passing.end_markers = True
        out.push_end()
        assert list(inp) == []
        with pytest.raises(shmring.EndOfStream):
            passing.pop(timeout=0)


def test_consumer_that_was_killed_with_messages_delays_the_end(ring, child):
    code = """
        import sys, shmring
        with shmring.attach(sys.argv[1]) as ring, ring.consumer("w") as inp:
            with inp.lease() as lease:
                print("holds", bytes(lease.data).decode())
                sys.stdin.readline()
    """
    with ring.producer() as out, ring.consumer("w") as inp:
        out.push(b"x")
        victim = child(code, ring.name)
        assert victim.line() == "holds x"
        out.push_end()
        victim.kill()
        assert list(inp) == [b"x"]


def test_new_branch_at_earliest_sees_the_old_run_with_its_end(ring):
    with ring.producer() as out, ring.consumer("a", start="earliest") as inp:
        for run in (b"1", b"2"):
            out.push(run)
            out.push_end()
            assert list(inp) == [run]
        with ring.consumer("b") as late, ring.consumer("c", start="latest") as new:
            assert list(late) == [b"1"]
            assert list(late) == [b"2"]
            out.push(b"3")
            out.push_end()
            assert list(new) == list(late) == list(inp) == [b"3"]


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


@pytest.mark.parametrize("reader_first", [False, True])
def test_run_without_messages_ends_its_reader_in_either_order(ring, reader_first):
    ring.subscribe("a")
    for run in range(4):
        inp = ring.consumer("a") if reader_first else None
        with ring.producer() as out:
            if run == 1:
                out.push(b"x")
            out.push_end()
        with inp or ring.consumer("a") as reader:
            assert list(reader) == [b"x"] * (run == 1)
            with pytest.raises(shmring.Empty):
                reader.pop(timeout=0)


def test_each_of_several_readers_has_one_end_for_each_run_that_waits(ring):
    for branch in ("a", "b"):
        ring.subscribe(branch)
    for run in (b"1", b"", b"2", b"", b""):
        with ring.producer() as out:
            if run:
                out.push(run)
            out.push_end()
    for branch in ("a", "b"):
        with ring.consumer(branch) as one, ring.consumer(branch) as other:
            for run in ([b"1"], [], [b"2"], [], []):
                assert list(one) == run
                assert list(other) == []
