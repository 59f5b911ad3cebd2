"""What is seen of a host from outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import shmring
from shmring import host
from shmring.host import Observer


def test_lease_is_no_older_than_its_consumer_and_than_the_look_before_it(
    ring: shmring.Ring, name: str, until: Callable[..., None]
) -> None:
    ring.subscribe("b")

    def age() -> float:
        holder = ring.holder()
        assert holder is not None
        assert holder["age_s"] is not None
        return holder["age_s"]

    def held(observer: Observer) -> float:
        seen = observer.look().ring(name)
        assert seen is not None
        (found,) = seen.held.values()
        return found

    with ring.producer() as out, Observer([name]) as observer:
        out.push_many([b"x", b"y"])
        until(lambda: age() > 1)  # before there is a consumer
        with ring.consumer("b") as inp:
            lease = inp.lease()
            joined = held(observer)
            assert joined < age() - 1
            until(lambda: held(observer) > joined + 0.5)
            lease.release()
            with inp.lease():
                assert held(observer) < held(Observer([name])) - 0.5


def test_ring_that_goes_with_its_last_user_is_not_seen_without_users(
    ring: shmring.Ring, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    see = host._see

    def see_late(*arguments: object) -> host.Seen:
        ring.close()
        return see(*arguments)

    with Observer([name]) as observer:
        assert observer.look().ring(name) is not None
        monkeypatch.setattr(host, "_see", see_late)
        assert observer.look().rings == []
