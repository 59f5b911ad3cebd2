"""What a function's annotations say that it takes and gives, where that is no batch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pyarrow as pa

__all__ = ["Hints", "hints_of", "without_decorator"]

_NONE = inspect.Parameter.empty

# The modules of names that many import for type checkers alone.
_USUAL = {
    "pa": "pyarrow",
    "pyarrow": "pyarrow",
    "pd": "pandas",
    "pandas": "pandas",
} | dict.fromkeys(("Any", "Generator", "Iterable", "Iterator", "Tuple", "Union"), "typing")

# Spark's numbers of UDFs that give columns for columns: of pandas and Arrow, and with iterators.
_EVAL_TYPES = (200, 204, 250, 251)

_SERVED = (
    "pandas.Series, pandas.DataFrame or pyarrow.Array, one or several -> one of them; Iterator of "
    "one, or of a tuple of them -> Iterator; a group's key and pandas.DataFrame -> "
    "pandas.DataFrame; the last two with pyarrow.RecordBatch or pyarrow.Table, too"
)

_SERIES, _FRAME = "Series", "DataFrame"
_ROWS = frozenset({"RecordBatch", "Table"})


@dataclass(frozen=True, slots=True)
class Hints:
    """What a function takes and gives.

    Parameters
    ----------
    what : the class of its arguments: "DataFrame", "Array", "RecordBatch", "Table"; or "Series", of
        which some may be a "DataFrame"
    are_iterated : whether it takes and gives iterators
    has_key : whether a group's key comes before its rows
    text : the signature
    """

    what: str
    are_iterated: bool
    has_key: bool
    text: str


def without_decorator(function: Any, target: str) -> Any:
    """The function that Spark's pandas_udf or arrow_udf has decorated, or any other as it is.

    Raises
    ------
    ValueError : it is a UDF of another kind
    """
    kind = getattr(function, "evalType", None)
    if not isinstance(kind, int):
        return function
    if kind not in _EVAL_TYPES:
        raise ValueError(
            f"{target} is a UDF of Spark's of which a sidecar knows nothing (evalType {kind}): a "
            f"pandas_udf or arrow_udf that gives a column for columns can be served"
        )
    return function.func


def hints_of(function: Callable[..., Any], target: str) -> Hints | None:
    """What the annotations say; None where they say nothing, or batches.

    Raises
    ------
    ValueError : a sidecar cannot serve them
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError, NameError):  # written in C; or names that are not imported
        return None
    names = dict(_names_of(function))
    parameters = signature.parameters.values()
    # What has a default is the user's own matter.
    given = [_resolved(each.annotation, names) for each in parameters if each.default is _NONE]
    if all(map(_may_be_batch, given)):
        return None
    found = _understood(given, _resolved(signature.return_annotation, names), str(signature))
    if found is None:
        raise ValueError(
            f"{target} is annotated {signature}, which a sidecar cannot serve. It can: {_SERVED}; "
            f"functions without annotations, which take and give batches of pyarrow"
        )
    return found


def _understood(given: list[Any], returned: Any, text: str) -> Hints | None:
    has_key = len(given) > 1 and _is_key(given[0])
    takes = [_classes(each) for each in given[has_key:]]
    classes, are_iterated = frozenset[str]().union(*(each[0] for each in takes)), takes[0][1]
    if not all(each[0] for each in takes) or (are_iterated and len(takes) > 1):
        return None
    if classes <= {_SERIES, _FRAME}:
        what, gives = (_SERIES if _SERIES in classes else _FRAME), frozenset({_SERIES, _FRAME})
    elif len(classes) == 1:
        (what,) = classes
        gives = _ROWS if classes <= _ROWS else classes
    else:
        return None
    if has_key and what not in (_FRAME, *_ROWS):
        return None
    if returned is not _NONE and returned is not Any:
        found, is_iterator = _classes(returned)
        if not found or not found <= gives or is_iterator != are_iterated:
            return None
    return Hints(what, are_iterated, has_key, text)


def _classes(annotation: Any) -> tuple[frozenset[str], bool]:
    """The classes of data that it names, none where it names others, and whether iterated over."""
    if get_origin(annotation) not in (Iterator, Iterable, Generator):
        return _named(annotation), False
    item, *_ = get_args(annotation) or (Any,)
    if get_origin(item) is not tuple:
        return _named(item), True
    parts = [_named(each) for each in get_args(item) if each is not Ellipsis]
    return frozenset[str]().union(*parts) if all(parts) else frozenset(), True


def _named(annotation: Any) -> frozenset[str]:
    if get_origin(annotation) in (Union, UnionType):
        parts = [_named(each) for each in get_args(annotation)]
        return frozenset[str]().union(*parts) if all(parts) else frozenset()
    if not isinstance(annotation, type):
        return frozenset()
    for each in (pa.Array, pa.RecordBatch, pa.Table):
        if issubclass(annotation, each):
            return frozenset({each.__name__})
    is_pandas = annotation.__module__.partition(".")[0] == "pandas"
    return frozenset({annotation.__name__} & {_SERIES, _FRAME}) if is_pandas else frozenset()


def _is_key(annotation: Any) -> bool:
    return annotation in (_NONE, Any, tuple) or get_origin(annotation) is tuple


def _may_be_batch(annotation: Any) -> bool:
    """Whether it says so, or nothing that is known."""
    if annotation in (_NONE, Any):
        return True
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_may_be_batch, get_args(annotation)))
    if get_origin(annotation) is not None:
        return False
    if isinstance(annotation, type):
        return getattr(annotation, "_is_protocol", False) or issubclass(pa.RecordBatch, annotation)
    return True


def _names_of(function: Any) -> dict[str, Any]:
    """Those that its annotations may use; none for what is written in C."""
    function = inspect.unwrap(function)
    if isinstance(function, functools.partial):
        return _names_of(cast("Any", function).func)
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(function, "__globals__", {})


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """The annotation; the text of one that nobody can resolve."""
    it = SimpleNamespace(__annotations__={"it": annotation})
    while annotation is not _NONE:
        try:
            return get_type_hints(it, globalns=names)["it"]
        except NameError as error:
            name = error.name
            if name in names or name not in _USUAL:
                break
            module = import_module(_USUAL[name])
            names[name] = module if module.__name__ != "typing" else getattr(module, name)
        except (TypeError, SyntaxError, AttributeError):
            break
    return annotation
