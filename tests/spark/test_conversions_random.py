"""Random groups, functions and settings: conversions against Spark's own function, group by group.

There is no JVM: Spark's function gets each group, the conversion the same groups joined at random.
``SHMRING_RANDOM_GROUPS`` sets the number of cases in `make test-long`; the default is 3000.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import os
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.conversion
import pyspark.sql.types as sql
import pytest
from joined import (
    AGGREGATES,
    COGROUPS,
    FRAMES,
    MAPS,
    SCALAR_ITERATORS,
    SCALARS,
    WINDOWS,
    change,
    compare,
    compare_batches,
    describe,
    of_pandas_2,
    places,
)

pytestmark = [pytest.mark.spark_version(since="4.3"), of_pandas_2]

SOME = 300  # in the quick tests
LONG = int(os.environ.get("SHMRING_RANDOM_GROUPS", "3000"))
RUNS = 20  # cases of a test

ZONE = "spark.sql.session.timeZone"
SETTINGS = [
    *({}, {}, {}),
    {"spark.sql.execution.pandas.convertToArrowArraySafely": "true"},
    {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true"},
    {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"},
    {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
    {"spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "true"},
]


# --- arguments of functions -----------------------------------------------------------------------


def _values(kind, rows, rng, zone):
    """Return the values of one group's column."""
    numbers = [rng.randrange(-(1 << 62), 1 << 62) for _ in range(rows)]
    small = [number % 200 - 100 for number in numbers]
    # Around the hour that the clock is set back in New York, and once too early for nanoseconds.
    seconds = [-15_000_000_000 if n == 99 else 1_446_350_400 + n * 60 for n in small]
    made = {
        "bool": lambda: ([n % 2 == 0 for n in small], pa.bool_()),
        "byte": lambda: (small, pa.int8()),
        "short": lambda: (small, pa.int16()),
        "int": lambda: (small, pa.int32()),
        "long": lambda: (numbers, pa.int64()),
        "float": lambda: ([rng.choice([n / 3, np.nan, np.inf]) for n in small], pa.float32()),
        "double": lambda: ([rng.choice([n / 3, np.nan, -0.0]) for n in small], pa.float64()),
        "string": lambda: ([rng.choice(["", "a", "\u00e4\u20ac"]) for _ in small], pa.string()),
        "binary": lambda: ([rng.randbytes(n % 4) for n in small], pa.binary()),
        "date": lambda: ([datetime.date(1900 + n, 5, 1) for n in small], pa.date32()),
        "timestamp": lambda: ([n * 10**6 for n in seconds], pa.timestamp("us", zone)),
        "local": lambda: ([n % 10**16 for n in numbers], pa.timestamp("us")),
        "decimal": lambda: ([decimal.Decimal(n).scaleb(-2) for n in small], pa.decimal128(10, 2)),
        "duration": lambda: (small, pa.duration("us")),
        "void": lambda: ([None] * rows, pa.null()),
        "array": lambda: ([[n, None] for n in small], pa.list_(pa.int32())),
        "struct": lambda: ([{"a": n} for n in small], pa.struct([("a", pa.int64())])),
        "map": lambda: ([[("k", n)] for n in small], pa.map_(pa.string(), pa.int64())),
    }
    values, kind_of_values = made[kind]()
    return pa.array(values, kind_of_values)


NESTED = ["void", "array", "struct", "map"]
# CHANGE: edit this for a new type between Spark and Arrow
FLAT = [
    *("bool", "byte", "short", "int", "long", "float", "double", "string", "binary", "date"),
    *("timestamp", "local", "decimal", "duration"),
]


def _some_kinds(rng, most):
    kinds = rng.sample(FLAT, rng.randrange(1, most))
    return kinds + rng.sample(NESTED, 1) if rng.random() < 0.1 else kinds


def _frames(rng, kinds, names, count, zone, sizes=(1, 1, 2, 5, 17)):
    """Frames of few rows, of one batch for the most part, with more or less of nulls."""
    nulls = rng.choice([[0], [0, 0, 0.3], [0.3], [0, 0.3, 1]])
    frames = []
    for _ in range(count):
        rows = rng.choice(sizes)
        columns = []
        for kind in kinds:
            column, share = _values(kind, rows, rng, zone), rng.choice(nulls)
            if share and kind not in NESTED:
                mask = pa.array([rng.random() < share for _ in range(rows)], pa.bool_())
                column = pc.if_else(mask, pa.scalar(None, column.type), column)
            columns.append(column)
        batch = pa.record_batch(columns, names=names)
        if rows > 1 and rng.random() < 0.05:
            frames.append([batch[:1], batch[1:]])
        else:
            frames.append([batch])
    return frames


SEEN = sql.StructType().add("seen", sql.StringType())


def given_frames(rng, settings):
    kinds = _some_kinds(rng, 8)
    kinds += rng.choices(kinds, k=rng.randrange(3))
    names = [rng.choice(["a", "b", *[f"x{place}"] * 3]) for place in range(len(kinds))]
    frames = _frames(rng, kinds, names, rng.choice([1, 2, 9, 40]), settings[ZONE])
    values = rng.sample(range(len(kinds)), rng.randrange(1, len(kinds) + 1))
    keys = [rng.randrange(len(kinds))] if rng.random() < 0.7 else []
    function = rng.choice(
        [
            lambda frame: pd.DataFrame({"seen": [describe(frame)]}),
            lambda frame: pd.DataFrame({"seen": [change(frame)]}),
            lambda key, frame: pd.DataFrame(
                {"seen": [f"{key!r} {list(map(type, key))} {describe(frame)}"]}
            ),
        ]
    )
    compare(rng, FRAMES, [(function, SEEN, places(keys, values), {})], [frames], settings)


def given_cogroups(rng, settings):
    count = rng.choice([1, 3, 20])
    sides, given = [], []
    for side in "lr":
        kinds = ["long", *_some_kinds(rng, 5)]
        names = [f"{side}{place}" for place in range(len(kinds))]
        sides.append(_frames(rng, kinds, names, count, settings[ZONE], (0, 1, 2, 5)))
        given += places([0], [*range(len(kinds))])
    pairs = [pair for pair in zip(*sides, strict=True) if any(each[0].num_rows for each in pair)]
    function = rng.choice(
        [
            lambda left, right: pd.DataFrame({"seen": [describe(left) + describe(right)]}),
            lambda key, left, right: pd.DataFrame({"seen": [repr(key) + change(right)]}),
        ]
    )
    if pairs:
        sides = [list(side) for side in zip(*pairs, strict=True)]
        compare(rng, COGROUPS, [(function, SEEN, given, {})], sides, settings)


def given_series(rng, settings):
    kinds = _some_kinds(rng, 4)
    names = [f"_{place}" for place in range(len(kinds))]
    frames = _frames(rng, kinds, names, rng.choice([1, 2, 9, 40]), settings[ZONE])
    udfs = []
    for _ in range(rng.randrange(1, 4)):
        taken = rng.choices(range(len(kinds)), k=rng.randrange(1, 3))
        function = rng.choice(
            [
                lambda *given, k=None: f"{[*map(describe, given)]} {given[0] is k}",
                lambda *given, k=None: f"{[*map(change, given)]} {given[0] is given[-1]}",
            ]
        )
        named = {"k": rng.choice(taken)} if rng.random() < 0.3 else {}
        udfs.append((function, sql.StringType(), taken, named))
    bounds = ["unbounded"] * len(udfs) if rng.random() < 0.3 else []
    compare(rng, WINDOWS if bounds else AGGREGATES, udfs, [frames], settings, bounds)


def given_windows(rng, settings):
    kinds = ["int", "int", *_some_kinds(rng, 3)]
    names = [f"_{place}" for place in range(len(kinds))]
    frames = []
    for frame in _frames(rng, kinds, names, rng.choice([1, 5, 20]), settings[ZONE]):
        batches = []
        for batch in frame:
            first = [max(0, row - 2) for row in range(batch.num_rows)]
            last = [rng.choice([row, row + 1, batch.num_rows]) for row in first]
            columns = [pa.array(first, pa.int32()), pa.array(last, pa.int32()), *batch.columns[2:]]
            batches.append(pa.record_batch(columns, schema=batch.schema))
        frames.append(batches)

    def writes(series):
        if len(series):
            series.iloc[0] = series.iloc[-1]
        return change(series)

    udfs, bounds = [], []
    for _ in range(rng.randrange(1, 3)):
        bounded = rng.random() < 0.7
        function = rng.choice([describe, lambda k: describe(k), writes])
        place = rng.randrange(2, len(kinds))
        named = {"k": place} if function not in (describe, writes) else {}
        taken = [*([0, 1] if bounded else []), *([] if named else [place])]
        udfs.append((function, sql.StringType(), taken, named))
        bounds.append("bounded" if bounded else "unbounded")
    compare(rng, WINDOWS, udfs, [frames], settings, bounds)


def given_batches(rng, settings):
    kinds = _some_kinds(rng, 8)
    kind = rng.choice([MAPS, MAPS, SCALARS, SCALAR_ITERATORS])
    names = [f"x{place}" for place in range(len(kinds))]
    if kind == MAPS and rng.random() < 0.2:
        names[-1] = names[0]
    frames = _frames(rng, kinds, names, rng.choice([1, 4]), settings[ZONE], (0, 1, 2, 17))
    tell = rng.choice([describe, change])

    def series(*given):
        return pd.Series(["".join(map(tell, given))] * len(given[0]))

    function = {
        MAPS: lambda frames: (pd.DataFrame({"seen": [tell(frame)]}) for frame in frames),
        SCALARS: series,
        SCALAR_ITERATORS: lambda given: (
            series(*each) if isinstance(each, tuple) else series(each) for each in given
        ),
    }[kind]
    places = None if kind == MAPS else rng.choices(range(len(kinds)), k=rng.randrange(1, 3))
    udf = function, SEEN if kind == MAPS else sql.StringType(), places, {}
    compare_batches(kind, [udf], [batch for frame in frames for batch in frame], settings)


# --- results of functions -------------------------------------------------------------------------

# CHANGE: edit this for a new type between Spark and Arrow
RETURNED = [
    *(sql.LongType(), sql.IntegerType(), sql.ByteType(), sql.DoubleType(), sql.FloatType()),
    *(sql.BooleanType(), sql.StringType(), sql.BinaryType(), sql.DateType()),
    *(sql.TimestampType(), sql.TimestampNTZType(), sql.DecimalType(10, 2)),
    *(sql.ArrayType(sql.DoubleType()), sql.DayTimeIntervalType()),
]


def _objects(make):
    def column(rows):
        array = np.empty(rows, object)
        for place in range(rows):
            array[place] = make(place)
        return array

    return column


COLUMNS = [
    *(np.arange, lambda n: np.arange(n) / 3, lambda n: np.arange(n, dtype="int8")),
    *(lambda n: np.arange(n, dtype="uint64"), lambda n: np.arange(n, dtype="float32") / 3),
    *(lambda n: np.arange(n) % 2 == 0, lambda n: np.arange(n) + (1 << 40)),
    *(lambda n: np.where(np.arange(n) % 2, np.nan, np.arange(n)), lambda n: np.full(n, np.nan)),
    *(lambda n: np.arange(n) * 1e300, lambda n: np.arange(n).astype(">i8")),
    *map(
        _objects,
        [
            *(lambda i: f"s{i}", lambda i: f"{i}", lambda i: None if i % 2 else f"s{i}"),
            *(lambda i: i if i % 2 else "x", lambda i: i if i % 2 else 2.5, lambda i: b"x"),
            *(lambda i: bytearray(b"x"), lambda i: datetime.date(2000, 1, 1 + i % 28)),
            *(lambda i: decimal.Decimal(i).scaleb(-1), lambda i: decimal.Decimal(i).scaleb(-7)),
            *(lambda i: None, lambda i: float("nan"), lambda i: pd.NA, lambda i: "a\ud800"),
            *(lambda i: [1.0, 2.0], lambda i: {"a": 1}, lambda i: [True, None][i % 2]),
            lambda i: datetime.datetime(2015, 11, 1, 1, i % 60),
        ],
    ),
    lambda n: pd.date_range("2015-11-01", periods=n, freq="17min"),
    lambda n: pd.date_range("2015-03-08", periods=n, freq="37min", tz="UTC"),
    lambda n: pd.date_range("1600-01-01", periods=n, unit="s"),
    lambda n: pd.timedelta_range("1s", periods=n),
    *(lambda n: pd.array(np.arange(n), dtype="Int64"), lambda n: pd.Categorical(["a"] * n)),
    lambda n: pd.array(["a"] * n, dtype="string"),
]


def _fitting(rng, values):
    """Return a type that values are converted to without an error, for the most part."""
    for returned in rng.sample(RETURNED, rng.choice([1, 8])):
        schema = sql.StructType().add("c", returned)
        with contextlib.suppress(Exception):
            pyspark.sql.conversion.PandasToArrowConversion.convert(
                [values], schema, timezone="UTC", arrow_cast=True
            )
            break
    return returned


def returned_frames(rng, settings):
    names = [f"c{place}" for place in range(rng.randrange(1, 4))]
    common, rare = ([rng.choice(COLUMNS) for _ in names] for _ in range(2))
    share, seed = rng.choice([0, 0, 0.03, 0.3]), rng.random()
    odd = rng.choice(
        [
            *(None, None, None, "reversed", "extra", "missing", "range", "none", "rows", "type"),
            *("raises", "index", "reused", "twice"),
        ]
    )
    kept = pd.DataFrame({name: np.zeros(3) for name in names})

    def function(frame):
        local = random.Random(hash((seed, int(frame["id"].iloc[0]))))
        rows = local.choice([1, 2, 5])
        if odd == "reused":
            kept.iloc[:] = local.random()
            return kept
        if odd in ("none", "rows", "type", "raises", "twice") and local.random() < 0.15:
            if odd == "raises":
                raise ValueError("of one group")
            if odd == "none":
                return pd.DataFrame()
            if odd == "type":
                return local.choice([None, [1], pd.Series([1])])
            rows = 0
        made = pd.DataFrame(
            {
                name: (other if local.random() < share else column)(rows)
                for name, column, other in zip(names, common, rare, strict=True)
            }
        )
        if odd == "range":
            made.columns = range(len(names))
        elif odd == "index":
            made.index = pd.Index([f"i{row}" for row in range(rows)])
        elif local.random() < 0.15:
            if odd == "reversed":
                return made[names[::-1]]
            if odd == "extra":
                return made.assign(more=1)
            if odd == "missing":
                return made[names[1:]]
            if odd == "twice":
                return made[[names[0], *names[:-1]]]
        return made

    schema = sql.StructType()
    for name, column in zip(names, common, strict=True):
        schema.add(name, _fitting(rng, pd.Series(column(2))))
    frames = [
        [pa.record_batch({"id": pa.array([number] * 2)})]
        for number in range(rng.choice([1, 9, 50]))
    ]
    compare(rng, FRAMES, [(function, schema, places([], [0]), {})], [frames], settings)


def returned_batches(rng, settings):
    kind = rng.choice([MAPS, SCALARS, SCALAR_ITERATORS])
    names = [f"c{place}" for place in range(rng.randrange(1, 4))]
    common, rare = ([rng.choice(COLUMNS) for _ in names] for _ in range(2))
    share, seed = rng.choice([0, 0, 0.3]), rng.random()
    odd = rng.choice([None, None, None, "reversed", "extra", "range", "index", "none", "type"])
    is_struct = kind == MAPS or rng.random() < 0.3

    def answer(given):
        local = random.Random(hash((seed, len(given))))
        rows = len(given) + (kind == MAPS) * local.choice([0, 0, -1, 3])
        columns = [
            pd.Series((other if local.random() < share else column)(max(rows, 0)))
            for column, other in zip(common, rare, strict=True)
        ]
        made = pd.concat(columns, axis=1, keys=names) if is_struct else columns[0]
        if odd == "type" and local.random() < 0.2:
            return local.choice([made.to_numpy(), 1, pd.DataFrame()])
        if odd == "index":
            made.index = [f"i{row}" for row in range(len(made))]
        if not is_struct or local.random() < 0.5:
            return made
        if odd == "range":
            made.columns = range(len(names))
        more = {"reversed": lambda: made[names[::-1]], "extra": lambda: made.assign(more=1)}
        return more.get(odd, lambda: made)()

    schema = sql.StructType()
    for name, column in zip(names, common, strict=True):
        schema.add(name, _fitting(rng, pd.Series(column(2))))
    function = answer if kind == SCALARS else lambda given: map(answer, given)
    udf = function, schema if is_struct else schema[0].dataType, None if kind == MAPS else [0], {}
    sizes = [rng.choice([1, 2, 5, 17]) for _ in range(rng.choice([1, 4]))]
    batches = [pa.record_batch({"id": pa.array([*range(size)])}) for size in sizes]
    compare_batches(kind, [udf] * (2 if kind == SCALARS else 1), batches, settings)


VALUES = [
    *(1.5, float("nan"), float("inf"), np.float64(2.5), np.float32(1.1), 1, -1, np.int64(7)),
    *(np.int32(5), True, np.bool_(False), 1 << 62, 1 << 63, 1 << 70, "x", "7", "", None, b"x"),
    *(decimal.Decimal("1.25"), datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, 12)),
    *(pd.Timestamp("2000-01-01 12:00"), pd.NA, pd.NaT, [1.0], np.array([1.0])),
]


def returned_values(rng, settings):
    common, rare = rng.choice(VALUES), rng.choice(VALUES)
    share, seed = rng.choice([0, 0, 0.05, 0.5]), rng.random()
    varies = type(common) in (int, float) and rng.random() < 0.6

    def function(*given):
        local = random.Random(hash((seed, len(given[-1]), float(given[-1].sum()))))
        if local.random() < share:
            return rare
        return type(common)(local.random() * 1e6) if varies else common

    udfs, bounds = [], []
    for udf in (function, lambda *given: float(given[-1].sum()))[: rng.randrange(1, 3)]:
        bounded = rng.random() < 0.4
        returned = _fitting(rng, pd.Series([common])) if udf is function else sql.DoubleType()
        udfs.append((udf, returned, [0, 1, 2] if bounded else [2], {}))
        bounds.append("bounded" if bounded else "unbounded")
    frames = []
    for number in range(rng.choice([1, 9, 50])):
        rows = rng.choice([1, 3])
        columns = [[0] * rows, [*range(rows)], [number] * rows]
        frames.append(
            [pa.record_batch([pa.array(c, pa.int32()) for c in columns], names=["a", "b", "c"])]
        )
    kind = WINDOWS if "bounded" in bounds or rng.random() < 0.3 else AGGREGATES
    compare(rng, kind, udfs, [frames], settings, bounds)


CASES = (
    *(given_frames, given_cogroups, given_series, given_windows),
    *(given_batches, returned_batches, returned_frames, returned_frames, returned_values),
)


@pytest.mark.filterwarnings("ignore")  # pandas gives the same warnings both ways
@pytest.mark.parametrize(
    "first",
    [
        *range(0, SOME, RUNS),
        *(pytest.param(first, marks=pytest.mark.long) for first in range(SOME, LONG, RUNS)),
    ],
)
def test_groups_are_what_spark_makes_of_them_one_by_one(first):
    for seed in range(first, first + RUNS):
        rng = random.Random(seed)
        zone = rng.choice(["UTC", "America/New_York", "Asia/Kolkata"])
        CASES[seed % len(CASES)](rng, {**rng.choice(SETTINGS), ZONE: zone})
