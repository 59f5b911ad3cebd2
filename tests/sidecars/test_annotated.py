"""Which functions a sidecar calls as Spark calls them, by their annotations."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any

import annotated as those
import pandas as pd
import pyarrow as pa
import pytest
from functions import for_udfs, numbers

from shmring import SidecarError, SidecarUnavailable
from shmring.sidecars.annotated import Annotated, annotated
from shmring.sidecars.hints import hints_of


@pytest.mark.parametrize(
    ("function", "what", "are_iterated", "has_key"),
    [
        (those.series, "Series", False, False),
        (those.series_iterator, "Series", True, False),
        (those.sums, "Series", True, False),
        (those.structs, "DataFrame", False, False),
        (those.array_sums, "Array", True, False),
        (those.frames, "DataFrame", True, False),
        (those.batches, "RecordBatch", True, False),
        (those.totals, "DataFrame", False, True),
        (those.table_totals, "Table", False, True),
        (those.partly, "Series", False, False),
        (those.Model(), "Series", False, False),
        (those.Unresolved().series, "Series", False, False),
    ],
)
def test_annotations_are_understood(function, what, are_iterated, has_key):
    hints = hints_of(function, "it")
    assert (hints.what, hints.are_iterated, hints.has_key) == (what, are_iterated, has_key)


def of_batch(batch: pa.RecordBatch) -> pa.Table: ...
def of_batches(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch: ...
def of_anything(batch: Any, other: object, limit: float = 0.5) -> Any: ...
def of_optional(batch: pa.RecordBatch | None) -> pa.RecordBatch: ...


@pytest.mark.parametrize(
    "function",
    [of_batch, of_batches, of_anything, of_optional, those.Unresolved().batch, len, lambda x: x],
)
def test_function_that_takes_batches_is_called_as_it_is(function):
    assert annotated(function, "it") is function


def of_series_and_array(x: pd.Series, y: pa.Array) -> pd.Series: ...
def of_one_for_all(x: Iterator[pd.Series]) -> pd.Series: ...
def of_another(x: pd.Series, factor: float) -> pd.Series: ...
def of_dicts(x: dict[str, int]) -> dict[str, int]: ...
def of_no_items(x: typing.Iterator) -> typing.Iterator: ...


@pytest.mark.parametrize(
    "function",
    [
        those.aggregate,
        those.numbers,
        of_series_and_array,
        of_one_for_all,
        of_another,
        of_dicts,
        of_no_items,
    ],
)
def test_other_annotations_are_refused_and_those_that_work_told(function):
    with pytest.raises(ValueError, match=r"mod:it is annotated \(x: .*It can: pandas\.Series"):
        annotated(function, "mod:it")


def test_udf_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="mod:it is a UDF of Spark's of which a sidecar knows"):
        annotated(those.plain, "mod:it")
    assert isinstance(annotated(those.decorated, "mod:it"), Annotated)
    assert isinstance(annotated(functools.partial(those.series), "mod:it"), Annotated)


def test_sidecar_of_such_a_function_does_not_start(serve, capfd):
    with pytest.raises(SidecarUnavailable, match="annotated:aggregate"):
        serve("annotated:aggregate")
    assert "annotated:aggregate is annotated (x: 'pd.Series') -> 'float'" in capfd.readouterr().err


def test_keywords_of_a_call_are_told_apart(serve, client):
    serve("annotated:array_difference")
    batch = pa.record_batch({"right": [1, 2], "left": [10, 20]})
    calls = [[["right", 0, True], ["left", 1, True]], [["a", 0], ["right", 1, True]]]
    with client() as it:
        (answer,) = it.map([for_udfs(batch, calls, pa.int64(), pa.int64())])
        assert answer.to_pydict() == {"_0": [9, 18], "_1": [-9, -18]}
        wrong = for_udfs(batch, [[["right", 0, False]]], pa.int64())
        with pytest.raises(SidecarError, match="no name with one of 2 columns"):
            list(it.map([wrong]))


def test_frames_without_types_are_refused(serve, client):
    serve("annotated:frames")
    with client() as it, pytest.raises(SidecarError, match="call it by mapInPandas"):
        list(it.map([numbers(0)]))


def test_request_that_cannot_tell_what_it_is_for_fails_alone(serve, client):
    serve("annotated:table")
    wrong = numbers(0).replace_schema_metadata({"shmring.spark": '{"what": 1}'})
    with client() as it:
        with pytest.raises(SidecarError, match=r"cannot tell what it is for \(shmring\.spark\)"):
            list(it.map([wrong]))
        assert list(it.map([numbers(0)])) == [numbers(0)]


def test_work_that_an_iterator_does_for_each_batch_is_told_once(serve, client, capfd):
    serve("annotated:slow")
    with client() as it:
        assert list(it.map([numbers(0), numbers(10)])) == [numbers(0), numbers(10)]
    assert capfd.readouterr().err.count("annotated:slow worked for 0.2 s before it took") == 1
