"""Conversions replace Spark's own where Spark's code is the one that they were compared with."""

from __future__ import annotations

import inspect
import sys
import types

import cloudpickle
import pyarrow as pa
import pyspark
import pyspark.worker as worker
import pytest
from pyspark.sql.types import LongType, StructType
from pyspark.util import PythonEvalType

from shmring.spark import conversions
from shmring.spark.conversions import Conversion

pytestmark = pytest.mark.spark_version(since="4.2")

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

    def read(function, kind=MAP, **settings):
        schema = StructType().add("v", LongType())
        info = types.SimpleNamespace(
            udfs=[cloudpickle.dumps((function, schema))], args=[], kwargs={}, result_id=0
        )
        conf = worker.RunnerConf({"spark.sql.session.timeZone": "UTC", **settings})
        return worker.read_udfs(worker.pickleSer, [info], kind, conf, worker.EvalConf({}))[0]

    yield read
    conversions._is_known.cache_clear()


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
        conversions._is_known.cache_clear()

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
    assert all(each in line for each in (str(MAP), known, pyspark.__version__))


def test_digest_changes_with_each_source(read, converted):
    converted()
    code = read(_same).__code__
    other = read(lambda frame: frame, PythonEvalType.SQL_MAP_PANDAS_ITER_UDF).__code__
    digests = {conversions.digest(each, HELPERS[:n]) for each in (code, other) for n in range(3)}
    assert len(digests) == 6


def test_source_is_the_one_that_python_finds(read):
    code = read(_same).__code__
    assert conversions._source(code, vars(worker)).rstrip() == inspect.getsource(code).rstrip()
