"""Conversions replace Spark's own where Spark's code is the one that they were compared with."""

from __future__ import annotations

import inspect
import random
import sys
import traceback
import types
from pathlib import Path

import joined
import pandas as pd
import pyarrow as pa
import pyspark
import pyspark.worker as worker
import pytest
from joined import (
    AGGREGATES,
    COGROUPS,
    FRAMES,
    MAPS,
    ROWS,
    SCALAR_ITERATORS,
    SCALARS,
    TABLES,
    WINDOWS,
    Exchange,
    of_pandas_2,
    places,
)
from pyspark.sql.types import DoubleType, LongType, StringType, StructType
from pyspark.util import PythonEvalType

from shmring.spark import conversions, sparks_code
from shmring.spark.conversions import CONVERSIONS, Conversion, waiting
from shmring.spark.serializers import TaskData
from shmring.spark.tracebacks import _seeming_sparks, leave_out_of_errors

pytestmark = pytest.mark.spark_version(since="4.3")

MAP = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
HELPERS = (
    "pyspark.worker:verify_return_type",
    "pyspark.sql.conversion:ArrowBatchTransformer.to_pandas",
)


@pytest.fixture
def read(monkeypatch):
    """Reads a function as a worker does that shmring has equipped."""
    monkeypatch.setattr(worker, "read_udfs", worker.read_udfs)
    monkeypatch.setattr(worker, "read_udtf", worker.read_udtf)
    conversions.equip.__wrapped__()
    schema = StructType().add("v", LongType())
    yield lambda function, kind=MAP, **settings: joined.read(
        kind, [(function, schema, [], {})], {"spark.sql.session.timeZone": "UTC", **settings}
    )
    conversions._unknown.cache_clear()


@pytest.fixture
def converted(monkeypatch):
    """Registers a conversion of mapInArrow for some digests; it adds a batch of its own."""
    made = types.ModuleType("shmring.spark.conversions.made_up")
    own = pa.record_batch({"v": [0]})

    def convert(sparks, variables):
        if variables["runner_conf"].get("leave", "") == "true":
            return None
        return lambda partition, data: iter([own, *sparks(partition, data)])

    made.convert = convert
    monkeypatch.setitem(sys.modules, made.__name__, made)

    def register(*digests):
        known = dict.fromkeys(digests, "any")
        conversion = Conversion("made_up:convert", HELPERS, known)
        monkeypatch.setattr(conversions, "CONVERSIONS", {MAP: conversion})
        conversions._unknown.cache_clear()

    yield register
    conversions._imported.cache_clear()


def _values(function):
    data = iter([pa.record_batch([pa.StructArray.from_arrays([[1, 2]], ["v"])], ["_0"])])
    return [batch.column(0).to_pylist() for batch in function(0, data)]


def _same(batches):
    return batches


OWN = [[{"v": 1}, {"v": 2}]]


def test_function_whose_source_is_known_is_replaced(read, converted):
    converted("none")
    known = conversions.digest(read(_same).__code__, HELPERS)
    converted(known)
    assert _values(read(_same)) != OWN
    assert _values(read(_same, leave="true")) == OWN
    assert _values(read(_same, **{conversions.SWITCH: "off"})) == OWN


def test_function_whose_source_is_unknown_stays_sparks_and_the_log_says_so_once(
    read, converted, capfd
):
    converted("none")
    assert [_values(read(_same)) for _ in range(3)] == [OWN] * 3
    (line,) = capfd.readouterr().err.splitlines()
    known = conversions.digest(read(_same).__code__, HELPERS)
    assert all(each in line for each in ("SQL_MAP_ARROW_ITER_UDF", known, pyspark.__version__))


def test_digest_changes_with_each_source(read, converted):
    converted()
    code = read(_same).__code__
    other = read(lambda frame: frame, PythonEvalType.SQL_MAP_PANDAS_ITER_UDF).__code__
    digests = {conversions.digest(each, HELPERS[:n]) for each in (code, other) for n in range(3)}
    assert len(digests) == 6


def test_source_is_the_one_that_python_finds(read):
    code = read(_same).__code__
    assert sparks_code._source(code, vars(worker)).rstrip() == inspect.getsource(code).rstrip()


# --- functions of groups --------------------------------------------------------------------------

LONG, TEXT = StructType().add("v", LongType()), StructType().add("v", StringType())
BATCHES = {
    ROWS: (lambda v: v, LongType(), [0], {}),
    MAPS: (lambda frames: frames, LONG, None, {}),
    SCALARS: (lambda v: v, LongType(), [0], {}),
    SCALAR_ITERATORS: (lambda given: given, LongType(), [0], {}),
}
UDFS = {
    FRAMES: (lambda frame: frame, LONG, places([], [0]), {}),
    COGROUPS: (lambda left, right: left, LONG, places([], [0]) + places([], [0]), {}),
    AGGREGATES: (lambda v: v.mean(), DoubleType(), [0], {}),
    WINDOWS: (lambda v: v.mean(), DoubleType(), [0], {}),
}
UNBOUNDED = {"window_bound_types": "unbounded"}


class _Table:
    def eval(self, v):
        yield (v,)


# CHANGE: edit this for a new version of Spark
@pytest.mark.parametrize("kind", CONVERSIONS)
def test_conversion_knows_the_spark_that_is_installed(kind):
    function = (
        joined.read_table(_Table, LONG, [0], {}, {}, LONG)
        if kind == TABLES
        else joined.read(kind, [{**UDFS, **BATCHES}[kind]], UNBOUNDED, LONG)
    )
    code = function.__code__
    conversion = CONVERSIONS[kind]
    assert pyspark.__version__.startswith(
        conversion.digests[conversions.digest(code, conversion.relies_on)]
    )


def test_frames_of_another_pandas_stay_sparks_and_the_log_says_so_once(read, monkeypatch, capfd):
    monkeypatch.setattr(pd, "__version__", "3.0.1")
    conversions._unknown.cache_clear()
    functions = [read(lambda frames: frames, MAPS) for _ in range(2)]
    assert all(function.__globals__ is vars(worker) for function in functions)
    (line,) = capfd.readouterr().err.splitlines()
    assert "of kind SQL_MAP_PANDAS_ITER_UDF have the conversions of Spark" in line
    assert line.endswith("pandas 2, not of 3.0.1: install 'pandas<3'")


def _batches(*values, kind=None):
    return [[pa.record_batch({"v": pa.array(each, kind)})] for each in values]


class _Together(random.Random):
    """Joins all groups to one request, and lets answers wait."""

    def random(self):
        return 0.5


def _run(kind, udf, frames, **settings):
    """Return the answers' batches, and how many groups were left to Spark's function."""
    settings = {"spark.sql.session.timeZone": "UTC", **UNBOUNDED, **settings}
    conversion = joined.convert(kind, joined.read(kind, [udf], settings))
    left, sparks = [], conversion._sparks
    conversion._sparks = lambda partition, data: sparks(partition, iter([*left_of(data)]))

    def left_of(data):
        for group in data:
            left.append(group)
            yield group

    sides = [frames] * (2 if kind == COGROUPS else 1)
    answers = list(conversion(0, TaskData(Exchange(_Together(), sides), iter(()))))
    return answers, len(left)


@pytest.fixture
def patient(monkeypatch):
    """Lets answers wait for as long as the test takes."""
    monkeypatch.setattr(waiting, "_PATIENCE", float("inf"))


@of_pandas_2
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", UDFS)
def test_groups_are_converted_together_and_so_are_answers(kind):
    answers, left = _run(kind, UDFS[kind], _batches([1, 2], [3], [4, 5, 6], [7]))
    assert [batch.num_rows for batch in answers] == [4 if kind == AGGREGATES else 7]
    assert left == 0
    _, left = _run(kind, UDFS[kind], _batches([1, 2], [None, 3], [None], kind=pa.int64()))
    assert left == 0


def _of_text(value):
    return lambda frame: pd.DataFrame({"v": [value]})


@of_pandas_2
@pytest.mark.parametrize(
    ("batches", "settings"),
    [
        (_batches([[1]], [[2]]), {}),
        (_batches([{"a": 1}], [{"a": 2}]), {}),
        (_batches([[("k", 1)]], [[("k", 2)]], kind=pa.map_(pa.string(), pa.int64())), {}),
        (_batches([None], [None], kind=pa.null()), {}),
        (_batches([1], [2], kind=pa.time64("us")), {}),
        (
            _batches([1], [None]),
            {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true"},
        ),
        # Too early for nanoseconds.
        (_batches([0], [-15 * 10**15], kind=pa.timestamp("us", "UTC")), {}),
        ([[pa.record_batch({"v": [1]})] * 2] * 2, {}),
        (_batches([1]), {}),
    ],
    ids=["array", "struct", "map", "void", "time", "long", "timestamp", "batches", "alone"],
)
def test_groups_that_cannot_be_joined_are_left_to_spark(batches, settings):
    udf = (_of_text("x"), TEXT, places([], [0]), {})
    outcome = []
    try:
        answers, left = _run(FRAMES, udf, batches, **settings)
        outcome = [left, sum(batch.num_rows for batch in answers)]
    except Exception as error:
        outcome = type(error).__name__
    assert outcome in ([len(batches)] * 2, "OutOfBoundsDatetime", "ArrowInvalid")


@of_pandas_2
@pytest.mark.usefixtures("patient")
def test_answers_of_other_dtypes_are_converted_alone():
    def function(frame):
        kinds = {1: "int64", 2: "int64", 3: "Int64", 4: "int64", 5: "float64", 6: "float64"}
        return frame.astype(kinds[frame["v"][0]])

    answers, left = _run(FRAMES, (function, LONG, places([], [0]), {}), _batches(*zip(range(1, 7))))
    assert [batch.num_rows for batch in answers] == [2, 1, 3]
    assert not left


def test_errors_show_no_frame_of_any_method_of_a_conversion():
    """Spark takes a frame outside of its files for the user's, and drops the error's cause."""
    of_package = {"__name__": "shmring.spark.some"}
    code = """
class Base:
    def usual(self): ...
class Own(Base):
    def method(self): ...
    @classmethod
    def of_class(cls): ...
    @staticmethod
    def static(): ...
"""
    exec(code, of_package)
    own = of_package["Own"]
    leave_out_of_errors(own)
    for method in (own.usual, own.method, own.of_class, own.static):
        assert Path(method.__code__.co_filename).is_relative_to(Path(worker.__file__).parent), (
            method
        )


def test_frame_of_a_conversion_has_its_own_source_in_errors_that_show_it():
    function = types.FunctionType(_seeming_sparks(sparks_code.copied.__code__), vars(sparks_code))
    with pytest.raises(AttributeError) as raised:
        function(None, None, None)
    assert "zip(function.__code__.co_freevars" in traceback.extract_tb(raised.tb)[-1].line
