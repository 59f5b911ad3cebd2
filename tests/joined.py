"""Functions of a worker, and a task's data, whose groups are joined at random, without a JVM."""

from __future__ import annotations

import types
from collections import deque
from importlib import import_module

import cloudpickle
import pyarrow as pa
import pyspark.worker as worker
from pyspark.util import PythonEvalType

from shmring.spark import exchange
from shmring.spark.conversions import CONVERSIONS
from shmring.spark.exchange import Request
from shmring.spark.sparks_code import free_variables

ROWS = PythonEvalType.SQL_ARROW_BATCHED_UDF
TABLES = PythonEvalType.SQL_ARROW_TABLE_UDF
MAPS = PythonEvalType.SQL_MAP_PANDAS_ITER_UDF
SCALARS = PythonEvalType.SQL_SCALAR_PANDAS_UDF
SCALAR_ITERATORS = PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF
FRAMES = PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF
COGROUPS = PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF
AGGREGATES = PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF
WINDOWS = PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF

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


class Exchange(exchange._Exchange):
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
