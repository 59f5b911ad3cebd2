"""Where the messages of a TableRing lie in its table."""

from __future__ import annotations

import itertools

import pytest
from statements import execute

from shmring.table_ring import TableRing
from shmring.table_ring.schema import MAX_SLOTS, Layout, place, stride_for


@pytest.fixture
def url(either: str) -> str:
    return either


@pytest.mark.parametrize("scattered", [False, True])
def test_place_is_a_bijection_for_every_size(scattered: bool) -> None:
    for slots in itertools.chain(range(1, 400), (1000, 1024, 4095, 4096, 9973, 30030)):
        stride = stride_for(slots, scattered=scattered)
        assert sorted(place(n, slots, stride) for n in range(slots)) == list(range(slots)), slots


def test_place_repeats_after_a_lap_however_far() -> None:
    layout = Layout(1000, stride_for(1000, scattered=True))
    assert [layout.place(n) for n in range(1000)] == [layout.place(n + 10**15) for n in range(1000)]


def test_scattered_neighbours_lie_far_apart() -> None:
    layout = Layout(100_000, stride_for(100_000, scattered=True))
    for run in range(0, 100_000, 9973):
        ten = sorted(layout.place(run + k) for k in range(10))
        assert min(b - a for a, b in itertools.pairwise(ten)) > 5000


def test_largest_ring_does_not_overflow_a_bigint() -> None:
    stride = stride_for(MAX_SLOTS, scattered=True)
    assert (MAX_SLOTS - 1) * stride < 2**63


@pytest.mark.parametrize("slots", [1, 2, 3, 10, 997, 1000, MAX_SLOTS])
def test_database_and_python_agree_on_the_place(url: str, slots: int) -> None:
    layout = Layout(slots, stride_for(slots, scattered=True))
    numbers = [0, 1, 2, slots - 1, slots, slots + 1, 10**15 + 7, 2**62]
    queries = [f"SELECT {layout.place_sql(f'(CAST({n} AS BIGINT) + 0)')}" for n in numbers]
    found = [execute(url, query)[0] for query in queries]
    assert found == [layout.place(n) for n in numbers]


def test_scattered_ring_keeps_its_mapping_for_everybody(url: str) -> None:
    with TableRing(url, slots=100, scattered=True) as ring:
        ring.push_many([b"%d" % n for n in range(30)])
        with TableRing.attach(url) as other:
            assert other.layout == ring.layout == Layout(100, 11)
            shown = zip(
                other.table()["slot"].to_pylist(),
                other.table()["message_id"].to_pylist(),
                strict=True,
            )
            assert {n: slot for slot, n in shown if n is not None} == {
                n: ring.layout.place(n) for n in range(30)
            }
