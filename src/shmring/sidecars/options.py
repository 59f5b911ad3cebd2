"""Defines the options of a sidecar: each is a key of a TypedDict, annotated with an Option.

An option's annotation is also called its row. There is one TypedDict each for the decorator, for
the class Sidecar and its supervisor, for ``shmring sidecar``, and for ``configure()`` and Spark's
plugin. Java passes the options on as texts, so a new option needs no change in Java.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast, get_args, get_type_hints

from shmring._shmring import MAX_PARTICIPANTS
from shmring.common.arguments import integer, milliseconds_of, number_of, seconds_of, slots_of
from shmring.sidecars.functions import Batching

LOADING_SECONDS = 120.0  # default of `timeout`
USUAL_WAIT = 5.0  # default of `max_wait_ms`
_WIDTH = 96  # maximum characters in a line of a generated docstring

Documented = TypeVar("Documented", bound=Callable[..., Any])
Given = TypeVar("Given", bound=Mapping[str, Any])


def _count(what: str, value: Any) -> int:
    return integer(what, value, 1)


def _workers(what: str, value: Any) -> int:
    # Leave two seats of the ring free: the supervisor and at least one client need them.
    return integer(what, value, 1, MAX_PARTICIPANTS - 2)


def _milliseconds(what: str, value: Any) -> float:
    return float(milliseconds_of(what, value))


def _loading_seconds(what: str, value: Any) -> float:
    if not seconds_of(what, value) > 0:
        raise ValueError(f"{what} must be more than 0 seconds: the workers have to load")
    return value


def _switch(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}")
    return value


def _switch_of(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


@dataclass(frozen=True)
class ValueType:
    """A type of option values: how a value is checked, read from text and named in errors."""

    check: Callable[[str, Any], Any]  # returns the value of a named option, or raises an error
    read: Callable[[str], Any]  # reads a setting's text; raises ValueError
    noun: str  # noun for a setting's values in errors
    metavar: Literal["N", "MS", "SECONDS", ""]  # unit in the command's help; empty for a switch


COUNT = ValueType(_count, int, "a number", "N")
WORKERS = ValueType(_workers, int, "a number", "N")
SLOTS = ValueType(slots_of, number_of, "a number", "N")
MILLISECONDS = ValueType(_milliseconds, float, "a number", "MS")
SECONDS = ValueType(_loading_seconds, float, "a number", "SECONDS")
SWITCH = ValueType(_switch, _switch_of, "true or false", "")


@dataclass(frozen=True)
class Option:
    """Describes an option."""

    takes: ValueType
    words: str  # a sentence for the command's help and for docstrings
    default: str = ""  # the default in words, for help and docstrings; unused if `usual` is a float
    more: str = ""  # further sentences for docstrings
    usual: object = None  # the value of the option if it is not set
    # Whether workers get the option, so that two sidecars whose values differ share no requests.
    reaches_workers: bool = False

    @property
    def default_words(self) -> str:
        """The default in words for help and docstrings; empty for a switch, which is off."""
        return f"{self.usual:g}" if isinstance(self.usual, float) else self.default


# CHANGE: edit this for a new option of a sidecar
class DecoratorOptions(TypedDict, total=False):
    """Options that belong to a function, so that its decorator may set them, too."""

    workers: Annotated[
        int | None,
        Option(WORKERS, "Processes that share the requests.", "the decorator's, else 1"),
    ]
    max_batch_rows: Annotated[
        int | None,
        Option(
            COUNT,
            "Join the requests of several clients into batches of so many rows at most.",
            "the decorator's, else each request is worked on alone",
            "A worker calls the function once for a batch, and cuts the answer. The function must "
            "return one row for each row of the batch, in order. If it raises, each request is "
            "worked on alone, so that only the request that is the cause fails.",
            reaches_workers=True,
        ),
    ]
    max_wait_ms: Annotated[
        float | None,
        Option(
            MILLISECONDS,
            "Milliseconds that a request waits for others to be joined with.",
            usual=USUAL_WAIT,
            reaches_workers=True,
        ),
    ]


class ServerOptions(DecoratorOptions, total=False):
    """Options of every sidecar."""

    slots: Annotated[
        int | None,
        Option(
            SLOTS,
            "Size of the request ring, in slots of 300 bytes.",
            "131072 (44 MB), or fewer where /dev/shm is small",
        ),
    ]
    pin: Annotated[
        bool,
        Option(
            SWITCH,
            "Pin the request ring for the GPU, in each worker that has loaded its function.",
            more="See :meth:`shmring.Ring.pin`. A worker without a GPU's runtime ends.",
            usual=False,
            reaches_workers=True,
        ),
    ]


class SidecarOptions(ServerOptions, total=False):
    """Options of a sidecar that a program starts."""

    replace: Annotated[
        bool,
        Option(
            SWITCH,
            "Take the place of the sidecar of this name, which ends with the requests that it has.",
            more="All sidecars of the name on this host are replaced, whatever they serve. They "
            "serve until this one has loaded.",
        ),
    ]


_Timeout = Annotated[
    float | None,
    Option(SECONDS, "Seconds for the workers to load the function.", usual=LOADING_SECONDS),
]


class CommandOptions(SidecarOptions, total=False):
    """Options of ``shmring sidecar``."""

    timeout: _Timeout


class PluginOptions(ServerOptions, total=False):
    """Options of the sidecars of Spark's plugin."""

    timeout: _Timeout
    shared: Annotated[
        bool,
        Option(SWITCH, "Start one sidecar for all executors of a host, instead of one for each."),
    ]


def rows(options: type[Any]) -> dict[str, Option]:
    """Return the Options that annotate the keys of a TypedDict of this module, by key."""
    hints = get_type_hints(options, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items()}


def checked(options: type[Given], given: Given) -> Given:
    """Return the options that are not None, as plain Python values.

    Raise TypeError or ValueError if an option is unknown, or its value is not possible.
    """
    known = rows(options)
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{name!r} is none of the options {', '.join(known)}")
        if value is not None:
            found[name] = known[name].takes.check(name, value)
    if "max_wait_ms" in found and "max_batch_rows" not in found:
        raise ValueError("max_wait_ms is how long requests wait for max_batch_rows")
    return cast("Given", found)


def batching_of(given: DecoratorOptions) -> Batching | None:
    """Return how these options join requests; None if each request is worked on alone."""
    most, wait = given.get("max_batch_rows"), given.get("max_wait_ms")
    return None if most is None else Batching(most, (USUAL_WAIT if wait is None else wait) / 1000)


def decorated(target: object) -> DecoratorOptions:
    """Return the options that a function's decorator has set."""
    return cast("DecoratorOptions", getattr(target, "__sidecar_options__", {}))


def part(options: type[Given], given: Mapping[str, Any]) -> Given:
    """Return the given options that are keys of `options`, a TypedDict of this module."""
    return cast("Given", {name: given[name] for name in rows(options) if name in given})


def names_for_workers() -> list[str]:
    return [name for name, row in rows(ServerOptions).items() if row.reaches_workers]


def for_workers(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that workers get, with the default of each option that is not set.

    The result is the same whether a default is given or left out, so that identities can be
    compared.
    """
    reaching = {name: row for name, row in rows(ServerOptions).items() if row.reaches_workers}
    return {n: row.usual if given.get(n) is None else given[n] for n, row in reaching.items()}


# --- settings of Spark --------------------------------------------------------------------------


def setting_of(name: str) -> str:
    """Return the last part of a setting's name: maxBatchRows for max_batch_rows."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def settings_of(options: PluginOptions) -> dict[str, str]:
    """Return checked options as texts, by the last part of their settings' names."""
    return {
        setting_of(name): "true" if value is True else str(value)
        for name, value in options.items()
        if value is not False
    }


def read_settings(prefix: str, texts: Mapping[str, str]) -> PluginOptions:
    """Return the options that the settings give; raise ValueError, which names the setting."""
    known = {setting_of(name): (name, row) for name, row in rows(PluginOptions).items()}
    found: dict[str, Any] = {}
    for setting, text in texts.items():
        if setting not in known:
            names = ", .".join(("function", "command", *known))
            raise ValueError(f"{prefix}.{setting} is none of {prefix}.{names}")
        name, row = known[setting]
        try:
            found[name] = row.takes.read(text)
        except ValueError:
            raise ValueError(f"{prefix}.{setting} must be {row.takes.noun}, not {text!r}") from None
    return checked(PluginOptions, cast("PluginOptions", found))


# --- signatures and docstrings --------------------------------------------------------------------


def documented(options: type[Any]) -> Callable[[Documented], Documented]:
    """Return a decorator that replaces the docstring's line `options : ...` by each option's entry.

    A class also gets the options into its signature. help() and the documentation's pages show
    docstrings and signatures.
    """

    def document(target: Documented) -> Documented:
        described: Any = target
        described.__doc__ = "\n".join(
            part
            for line in (described.__doc__ or "").splitlines()
            for part in (
                _entries(options, line) if line.lstrip().startswith("options :") else [line]
            )
        )
        # A function keeps its signature: Sphinx reads a function's defaults from its source.
        if isinstance(described, type):
            signature = inspect.signature(target)
            own = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
            described.__signature__ = signature.replace(parameters=[*own, *_parameters(options)])
        return target

    return document


def _entries(options: type[Any], line: str) -> list[str]:
    indent = line[: -len(line.lstrip())]
    lines: list[str] = []
    for name, row in rows(options).items():
        default = f"Default: {row.default_words}." if row.default_words else ""
        text = " ".join(filter(None, (f"{name} : {row.words}", row.more, default)))
        lines += textwrap.wrap(
            text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    "
        )
    return lines


def _parameters(options: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(options)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if row.takes is SWITCH else None,
            annotation=hints[name],
        )
        for name, row in rows(options).items()
    ]
