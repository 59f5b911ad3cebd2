"""Arguments of sidecars, clients and Spark functions are checked where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmring
from shmring.sidecars import SidecarClient
from shmring.spark import arrow_udf, configure, through

NAN = float("nan")
# Values that cannot be a number of things, a time, a ring's size or a name.
COUNTS = [0, -1, "3", True, 2**64, 1.5, NAN]
TIMES = [-1, "5", True, NAN]
SLOTS = [0, -1, "4096", True, 5000, 512, 2**32, 4096.0]
NAMES = [5, "", None, "a/b", "ä", "x" * 94, b"scorer"]


def clients() -> dict[str, Callable[..., Any]]:
    """Calls with the options of a client."""
    return {
        "through": lambda name="s", **options: through(name, **options),
        "arrow_udf": lambda name="s", **options: arrow_udf(name, "long", **options),
        "client": lambda name="s", **options: SidecarClient(
            name, **{"connect_timeout": 0} | options
        ),
    }


def servers() -> dict[str, Callable[..., Any]]:
    """Calls with the options of a server."""

    class Builder:
        def config(self, *_: object) -> Builder:
            return self

    def configured(name: Any = "s", **options: Any) -> Any:
        builder: Any = Builder()
        return configure(builder, sidecars={name: "json:loads"}, **options)

    return {
        "Sidecar": lambda name="s", **options: shmring.Sidecar("json:loads", name=name, **options),
        "sidecar": lambda name="s", **options: shmring.sidecar(name, **options),
        "configure": configured,
    }


def refused(call: Callable[..., Any], option: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="sidecar" if option == "name" else option):
        call(**{option: value})


@pytest.mark.parametrize("call", clients())
def test_impossible_option_of_a_client_is_refused_when_it_is_given(call: str) -> None:
    ask = clients()[call]
    for value in [*COUNTS, None]:
        refused(ask, "in_flight", value)
    for option in ("timeout", "connect_timeout"):
        for value in [*TIMES, None]:
            refused(ask, option, value)
    for value in SLOTS:
        refused(ask, "reply_slots", value)
    for value in NAMES:
        refused(ask, "name", value)


@pytest.mark.parametrize("call", servers())
def test_impossible_option_of_a_server_is_refused_when_it_is_given(call: str) -> None:
    serve = servers()[call]
    for value in [*COUNTS[:4], *COUNTS[5:]]:
        refused(serve, "workers", value)
    for value in COUNTS[:4]:
        refused(serve, "max_batch_rows", value)
    for value in [*TIMES, float("inf")]:
        refused(lambda **given: serve(max_batch_rows=9, **given), "max_wait_ms", value)
    for value in NAMES:
        if value is not None:  # the function's name
            refused(serve, "name", value)
    if call != "sidecar":
        for value in SLOTS:
            refused(serve, "slots", value)


def test_session_refuses_switches_and_times_that_are_none() -> None:
    configured = servers()["configure"]
    for value in [0, -1, "5", True, NAN]:
        refused(configured, "timeout", value)
    for option in ("shared", "pin", "functions"):
        for value in ("true", 1):
            refused(configured, option, value)


def test_numbers_of_numpy_are_numbers() -> None:
    some = through("s", in_flight=np.int64(2), timeout=np.float32(1), reply_slots=np.int32(4096))
    assert some.described == (
        'shmring.through{"name": "s", "in_flight": 2, "timeout": 1.0, "connect_timeout": 10.0, '
        '"reply_slots": 4096}'
    )
