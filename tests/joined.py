"""Functions of a worker, and a task's data, whose groups are joined at random, without a JVM."""

from __future__ import annotations

import types
import warnings
from collections import deque
from importlib import import_module

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark.worker as worker
import pytest
from pyspark.util import PythonEvalType

from shmring.spark import exchange
from shmring.spark.conversions import CONVERSIONS
from shmring.spark.parts import Request
from shmring.spark.serializers import TaskData
from shmring.spark.sparks_code import free_variables

# CHANGE: edit this for a new kind of Python function
ROWS = PythonEvalType.SQL_ARROW_BATCHED_UDF
TABLES = PythonEvalType.SQL_ARROW_TABLE_UDF
MAPS = PythonEvalType.SQL_MAP_PANDAS_ITER_UDF
SCALARS = PythonEvalType.SQL_SCALAR_PANDAS_UDF
SCALAR_ITERATORS = PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF
FRAMES = PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF
COGROUPS = PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF
AGGREGATES = PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF
WINDOWS = PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF

# Mark of tests of frames, because Spark's own code makes the frames of other versions of pandas.
of_pandas_2 = pytest.mark.pandas_version(before="3")

called = []  # arguments of the calls of plain functions, in order


# CHANGE: edit this for a new version of Spark
def read(kind, udfs, settings, given=None):
    """Read functions as a worker does; each has a type, and places of arguments, and named ones.

    A plain function needs the type of what it is `given`.
    """
    infos = [
        types.SimpleNamespace(
            udfs=[cloudpickle.dumps((function, returned))], args=args, kwargs=named, result_id=0
        )
        for function, returned, args, named in udfs
    ]
    conf = worker.RunnerConf(settings)
    others = worker.EvalConf({"input_type": given.json()} if given is not None else {})
    return worker.read_udfs(worker.pickleSer, infos, kind, conf, others)[0]


def read_table(handler, returned, args, named, settings, given):
    """Read a UDTF as a worker does."""
    info = types.SimpleNamespace(
        pickled_analyze_result=None,
        handler=cloudpickle.dumps(handler),
        return_type=returned.json(),
        partition_child_indexes=[],
        args=args,
        kwargs=named,
        name="table",
    )
    conf = worker.RunnerConf(settings)
    others = worker.EvalConf({"input_type": given.json()})
    return worker.read_udtf(worker.pickleSer, info, TABLES, conf, others)[0]


def convert(kind, function):
    """Replace a function by its conversion, whatever its source is."""
    module, _, name = CONVERSIONS[kind].replacement.partition(":")
    replacement = getattr(import_module(f"shmring.spark.conversions.{module}"), name)
    return replacement(function, free_variables(function))


def places(keys, values):
    """Return the places of a side's columns as a worker is told of them."""
    return [len(keys) + len(values) + 1, len(keys), *keys, *values]


class Exchange(exchange.Exchange):
    """Has the requests of a task whose groups are joined at random."""

    def __init__(self, rng, sides):
        self._rng = rng
        self._frames = len(sides)
        self._parts = (deque(), deque())
        self._requests = iter(_requests(rng, sides))
        self._is_over = False
        self._converted = 0

    def _next(self):
        assert not self._is_over, "a worker would wait for ever"
        request = next(self._requests, None)
        self._is_over = request is None
        return request

    def _leave(self):
        """No task waits for its requests."""

    def is_ready(self):
        return self._rng.random() < 0.9


def _requests(rng, sides):
    """Join groups as a task does: a frame that goes on ends its request."""
    made = []
    waiting = [[] for _ in sides]

    def send(going_on=None):
        for side, batches in enumerate(waiting):
            if batches:
                whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
                rows = [batch.num_rows for batch in batches]
                made.append(Request((whole or batches)[0], rows, side == going_on, side))
                batches.clear()

    for group in zip(*sides, strict=True):
        for side, frame in enumerate(group):
            for batch in frame[:-1]:
                waiting[side].append(batch)
                send(going_on=side)
            waiting[side].append(frame[-1])
        if rng.random() < 0.15:
            send()
    send()
    return made


# --- both ways ------------------------------------------------------------------------------------


def _outcome(batches):
    """Return all answers, or only the error: answers before an error are not used."""
    try:
        # A worker writes each batch before the function gets on, and may use its frame again.
        given = [
            pa.ipc.read_record_batch(batch.serialize(), batch.schema)
            for batch in batches
            if batch.num_rows
        ]
    except Exception as error:
        cause = error.__cause__
        return f"{type(error).__name__}: {error}", f"{type(cause).__name__}: {cause}"
    if not given:
        return None
    table = pa.Table.from_batches(given)
    columns = [  # some instants are none that Python knows
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.flatten().columns
    ]
    return str(table.schema), repr([column.to_pylist() for column in columns])


def compare(rng, kind, udfs, sides, settings, windows=()):
    """Run functions over groups both ways; a side has frames, which are lists of batches."""
    settings = {**settings, "window_bound_types": ",".join(windows)}
    grouped = zip(*sides, strict=True) if len(sides) > 1 else map(iter, sides[0])
    sparks = _outcome(read(kind, udfs, settings)(0, iter(grouped)))
    ours = convert(kind, read(kind, udfs, settings))
    assert _outcome(ours(0, TaskData(Exchange(rng, sides), iter(())))) == sparks


def compare_batches(kind, udfs, batches, settings):
    """Run functions over batches both ways."""
    if kind == MAPS:
        batches = [pa.record_batch([batch.to_struct_array()], ["struct"]) for batch in batches]
    sparks = read(kind, udfs, settings)
    ours = convert(kind, read(kind, udfs, settings))
    assert _outcome(ours(0, iter(batches))) == _outcome(sparks(0, iter(batches)))


# --- all that a function can see ------------------------------------------------------------------


def describe(seen):
    """Describe a frame or series: dtypes, index, flags, blocks, memory, types of values."""
    index = seen.index
    told = [type(seen).__name__, repr(index), index.dtype, type(index).__name__, index.name]
    told += [seen.flags, seen.attrs, seen._is_copy, seen.shape, seen._mgr.is_consolidated()]
    columns = [seen]
    if isinstance(seen, pd.DataFrame):
        names = seen.columns
        told += [list(names), type(names).__name__, names.dtype, names.name, names.is_unique]
        columns = [seen.iloc[:, place] for place in range(seen.shape[1])]
    for block in seen._mgr.blocks:
        values = getattr(block.values, "_ndarray", block.values)
        told += [type(block).__name__, block.dtype, block.mgr_locs.as_array.tolist()]
        if isinstance(values, np.ndarray):
            flags = values.flags
            told += [values.shape, values.strides, flags.writeable, flags.aligned]
    for column in columns:
        told += [column.name, column.dtype, type(column.array).__name__, column.hasnans]
        told += [(type(value).__name__, repr(value)) for value in column]
    return "\n".join(map(repr, told))


def change(seen):
    """Describe what becomes of a frame or series that a function writes to."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            seen.iloc[0] = seen.iloc[-1]
            seen.index.name = "changed"
            seen.attrs["a"] = 1
            if isinstance(seen, pd.DataFrame):
                seen["new"] = 1
                seen.loc[0, seen.columns[0]] = seen.iloc[-1, 0]
                seen.columns.name = "changed"
            else:
                seen.name = "changed"
            error = None
        except Exception as raised:
            error = raised
    return f"{error!r} {[str(each.message) for each in warned]} {describe(seen)}"
