"""Arguments of sidecars, clients and Spark functions are checked where they are given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shmring
from shmring.cli import app
from shmring.sidecars import SidecarClient
from shmring.sidecars.options import (
    COUNT,
    CommandOptions,
    DecoratorOptions,
    Option,
    PluginOptions,
    SidecarOptions,
    names_for_workers,
    read_settings,
    rows,
    setting_of,
)
from shmring.spark import arrow_udf, configure, through
from shmring.spark.functions import Through

CALL = Path(__file__).parents[2] / "native/jvm/java/io/shmring/spark/request/Call.java"
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


# CHANGE: edit this for a new option of a client
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


# CHANGE: edit this for a new option of a sidecar
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
    for option in ("shared", "pin", "functions", "driver"):
        for value in ("true", 1):
            refused(configured, option, value)


# CHANGE: edit this for a new option of a client
def test_numbers_of_numpy_are_numbers() -> None:
    some = through("s", in_flight=np.int64(2), timeout=np.float32(1), reply_slots=np.int32(4096))
    assert some.described == (
        'shmring.through{"name": "s", "in_flight": 2, "timeout": 1.0, "connect_timeout": 10.0, '
        '"reply_slots": 4096}'
    )


def test_each_client_takes_the_same_options() -> None:
    options = [option.name for option in fields(Through)]
    for client in (through, SidecarClient):
        assert list(inspect.signature(client).parameters) == options
    assert re.findall(r'option\(call, "(\w+)"', CALL.read_text()) == options


# --- the one list of a sidecar's options ----------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (shmring.Sidecar, SidecarOptions),
        (shmring.sidecar, DecoratorOptions),
        (configure, PluginOptions),
    ],
)
def test_signature_and_text_show_each_option(call: Callable[..., Any], options: type) -> None:
    shown = inspect.signature(call).parameters
    words = " ".join(str(call.__doc__).split())
    for name, row in rows(options).items():
        assert f"{name} : {row.words}" in words
        assert call is not shmring.Sidecar or shown[name].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("call", servers())
def test_option_that_there_is_not_is_refused(call: str) -> None:
    for option in ("wokers", "in_flight"):
        with pytest.raises(TypeError, match=f"'{option}' is none of the options workers, "):
            servers()[call](**{option: 1})


def test_command_has_each_option_with_its_text() -> None:
    said = " ".join(CliRunner().invoke(app, ["sidecar", "--help"]).output.split())
    for name, row in rows(CommandOptions).items():
        option = f"--{name.replace('_', '-')} {row.takes.metavar}".strip()
        default = f" [default: {row.default_words}]" if row.default_words else ""
        assert f"{option} {row.words}{default}" in said


def test_pages_name_the_options_in_which_sidecars_of_one_name_agree() -> None:
    path = Path(__file__).parents[2] / "docs/guides/model-server.md"
    (page,) = re.findall(r"starts only if it serves the same: (.*?)\. Then", path.read_text(), re.S)
    (words,) = re.findall(r"and the same (.*?)\. A sidecar", shmring.Sidecar.__doc__ or "", re.S)
    shared = {"slots", *names_for_workers()}
    assert {each.replace("-", "_") for each in re.findall(r"`--([\w-]+)`", page)} == shared
    assert set(re.findall(r"`(\w+)`", words)) == shared


# CHANGE: edit this for a new option of a sidecar
SETTINGS: Mapping[str, tuple[str, object]] = {
    "workers": ("2", 2),
    "slots": ("64k", 65_536),
    "max_batch_rows": ("512", 512),
    "max_wait_ms": ("2.5", 2.5),
    "timeout": ("60", 60.0),
    "pin": ("True", True),
    "shared": ("false", False),
}


def test_settings_of_the_plugin_are_read_as_the_options_of_configure() -> None:
    assert SETTINGS.keys() == rows(PluginOptions).keys()
    texts = {setting_of(name): text for name, (text, _) in SETTINGS.items()}
    assert read_settings("p", texts) == {name: value for name, (_, value) in SETTINGS.items()}


@pytest.mark.parametrize(("name", "row"), rows(PluginOptions).items())
def test_wrong_setting_of_the_plugin_is_named(name: str, row: Option) -> None:
    setting = setting_of(name)
    with pytest.raises(ValueError, match=rf"^p\.{setting} must be {row.takes.noun}, not 'many'$"):
        read_settings("p", {setting: "many"})
    if row.takes is COUNT:
        with pytest.raises(ValueError, match=f"^{name} must be from 1 to"):
            read_settings("p", {setting: "0"})


def test_unknown_setting_of_the_plugin_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"^p\.wokers is none of p\.function, \.command, "):
        read_settings("p", {"wokers": "1"})
