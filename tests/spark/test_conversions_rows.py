"""Random rows, plain functions and settings: the conversion against Spark's own function.

There is no JVM: both get the same batches. ``SHMRING_RANDOM_GROUPS`` sets the number of cases in
`make test-long`; the default is 3000.
"""

from __future__ import annotations

import array
import datetime
import decimal
import os
import random
import time

import joined
import numpy as np
import pyarrow as pa
import pyspark.sql.types as sql
import pytest
from joined import ROWS
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.pandas.types import to_arrow_type

pytestmark = pytest.mark.spark_version(since="4.3")

SOME = 300  # in the quick tests
LONG = int(os.environ.get("SHMRING_RANDOM_GROUPS", "3000"))
RUNS = 20  # cases of a test

LEGACY = "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled"
THREADS = "spark.sql.execution.pythonUDF.arrow.concurrency.level"
SETTINGS = [
    *({}, {}, {}),
    {"spark.sql.execution.pyspark.binaryAsBytes": "false"},
    {"spark.sql.execution.pandas.convertToArrowArraySafely": "true"},
    {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
    {"spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "true"},
]

# --- arguments of functions -----------------------------------------------------------------------

EPOCH = datetime.datetime(1970, 1, 1)


def _instant(rng):
    """Return microseconds: an hour that clocks repeat, or the ends of what Python knows."""
    some = [1_446_350_400 + rng.randrange(-9000, 9000), rng.randrange(-(1 << 33), 1 << 33)]
    rare = [-62_135_596_800, 253_402_300_799, -70_000_000_000, 300_000_000_000, -(1 << 43)]
    return rng.choice(some * 20 + rare) * 10**6 + rng.choice([0, 1, 999_999])


def _day(rng):
    return rng.choice([rng.randrange(-20_000, 20_000)] * 40 + [-719_162, 2_932_896, 3_000_000])


PAIR = sql.StructType().add("day", sql.DateType()).add("s", sql.StringType())
KINDS = [
    (sql.BooleanType(), lambda rng: rng.random() < 0.5),
    (sql.ByteType(), lambda rng: rng.randrange(-128, 128)),
    (sql.LongType(), lambda rng: rng.randrange(-(1 << 63), 1 << 63)),
    (sql.FloatType(), lambda rng: rng.choice([rng.random(), float("nan"), float("inf")])),
    (sql.DoubleType(), lambda rng: rng.choice([rng.random(), float("nan"), -0.0])),
    (sql.StringType(), lambda rng: rng.choice(["", "a", "\u00e4\u20ac"])),
    (sql.BinaryType(), lambda rng: rng.randbytes(rng.randrange(4))),
    (sql.DateType(), _day),
    (sql.TimestampType(), _instant),
    (sql.TimestampNTZType(), _instant),
    (sql.TimeType(), lambda rng: rng.randrange(86_400 * 10**6) * 1000),
    (sql.DayTimeIntervalType(), lambda rng: rng.randrange(1 << 40)),
    (sql.DecimalType(10, 2), lambda rng: decimal.Decimal(rng.randrange(-99, 99)).scaleb(-2)),
    (sql.NullType(), lambda rng: None),
    (sql.ArrayType(sql.DateType()), lambda rng: [datetime.date(2000, 1, rng.randrange(1, 29))]),
    (sql.MapType(sql.StringType(), sql.BinaryType()), lambda rng: [("k", rng.randbytes(2))]),
    (PAIR, lambda rng: {"day": datetime.date(2000, 1, 1), "s": "x"}),
    (VectorUDT(), lambda rng: VectorUDT().serialize(Vectors.dense([rng.random()]))),
]


def _column(rng, kind, value, rows, zone):
    given = kind.sqlType() if isinstance(kind, sql.UserDefinedType) else kind
    share = rng.choice([0, 0, 0.3, 1])
    values = [None if rng.random() < share else value(rng) for _ in range(rows)]
    return pa.array(values, to_arrow_type(given, timezone=zone))


# --- calls of functions ---------------------------------------------------------------------------


class Text(str):
    """A string that is not exactly one."""

    def __str__(self):
        return "another"


RESULTS = [
    *(None, True, 1, -1, 300, 1 << 40, 1 << 70, 1.5, float("nan"), float("inf"), 1e300),
    *("x", "", "7", "\u20ac", "a\ud800", Text("x"), b"x", bytearray(b"x"), np.str_("x")),
    *(np.int64(7), np.float32(1.5), np.bool_(True), np.datetime64("2000-01-01")),
    *(decimal.Decimal("1.255"), decimal.Decimal("NaN"), decimal.Decimal(10) ** 12),
    *(datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, 12), datetime.time(1, 2)),
    *(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), datetime.timedelta(1)),
    *([1.0, None], [1], (1.0,), array.array("d", [1.0]), {"k": "v"}, {"day": None, "s": 1}),
    *(sql.Row(day=datetime.date(2000, 1, 1), s="x"), Vectors.dense([1.0]), object),
]
RETURNED = [
    *(sql.LongType(), sql.ByteType(), sql.DoubleType(), sql.FloatType(), sql.BooleanType()),
    *([sql.StringType()] * 4), *([sql.BinaryType()] * 2), sql.DateType(), sql.TimestampType(),
    *(sql.TimestampNTZType(), sql.DecimalType(10, 2), sql.DayTimeIntervalType(), sql.NullType()),
    *(sql.ArrayType(sql.DoubleType()), sql.MapType(sql.StringType(), sql.StringType()), PAIR),
    VectorUDT(),
]  # fmt: skip


def _seen(*given, **named):
    told = [(type(value).__name__, repr(value), getattr(value, "fold", None)) for value in given]
    joined.called.append(repr((told, named)))
    return joined.called[-1]


def _fits(result, returned):
    one = pa.record_batch([pa.array([1])], names=["_0"])
    given = sql.StructType().add("_0", sql.LongType())
    function = joined.read(ROWS, [(lambda: result, returned, [], {})], {}, given)
    return _outcome(function(0, iter([one])))[1] is None


def _returning(rng):
    """Return a function that returns one thing for the most part, and its type."""
    returned = rng.choice(RETURNED)
    common, rare = rng.choice(RESULTS), rng.choice(RESULTS)
    if rng.random() < 0.7:
        common = next((each for each in rng.sample(RESULTS, 30) if _fits(each, returned)), common)
    share, seed = rng.choice([0, 0, 0.05, 0.5]), rng.randrange(1 << 30)
    raised = rng.choice(
        [None] * 8 + [StopIteration("of the function"), ValueError("odd"), KeyError]
    )
    calls = iter(range(1 << 30))

    def function(*given, **named):
        joined.called.append((len(given), sorted(named)))
        local = random.Random(seed + next(calls))
        if raised is not None and local.random() < 0.02:
            raise raised
        return rare if local.random() < share else common

    return function, returned


def _outcome(batches):
    joined.called.clear()
    told, error = [], None
    try:
        for batch in batches:
            columns = [  # some instants are none that Python knows
                column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
                for column in batch.columns
            ]
            told.append((str(batch.schema), [column.to_pylist() for column in columns]))
    except Exception as raised:
        cause = raised.__cause__ or raised.__context__
        error = f"{type(raised).__name__}: {raised}", f"{type(cause).__name__}: {cause}"
    return repr(told) if error is None else "", error, list(joined.called)


def compare(rng, settings, zone):
    """Call functions with random batches both ways."""
    kinds = rng.choices(KINDS, k=rng.randrange(4))
    given = sql.StructType()
    for place, (kind, _) in enumerate(kinds):
        given.add(f"_{place}", kind)
    batches = []
    for _ in range(rng.choice([1, 1, 3])):
        rows = rng.choice([0, 1, 2, 7, 50])
        columns = [_column(rng, *kind, rows, zone) for kind in kinds]
        names = [f"_{place}" for place in range(len(kinds))]
        if kinds:
            batches.append(pa.record_batch(columns, names=names))
        else:
            batches.append(pa.record_batch([pa.nulls(rows)], names=["x"]).select([]))
    udfs = []
    for _ in range(rng.randrange(1, 4)):
        function, returned = (_seen, sql.StringType()) if rng.random() < 0.5 else _returning(rng)
        taken = rng.choices(range(len(kinds)), k=rng.randrange(4)) if kinds else []
        named = {"k": rng.randrange(len(kinds))} if kinds and rng.random() < 0.2 else {}
        udfs.append((function, returned, taken, named))
    sparks = joined.read(ROWS, udfs, settings, given)
    ours = joined.convert(ROWS, joined.read(ROWS, udfs, settings, given))
    assert _outcome(ours(0, iter(batches))) == _outcome(sparks(0, iter(batches)))


@pytest.fixture
def clock(monkeypatch):
    """Sets the clock of this process to a zone."""

    def put(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.filterwarnings("ignore")  # pyarrow gives the same warnings both ways
@pytest.mark.parametrize(
    "first",
    [
        *range(0, SOME, RUNS),
        *(pytest.param(first, marks=pytest.mark.long) for first in range(SOME, LONG, RUNS)),
    ],
)
def test_values_and_answers_are_sparks(first, clock):
    for seed in range(first, first + RUNS):
        rng = random.Random(seed)
        clock(rng.choice(["UTC", "America/New_York", "Asia/Kolkata"]))
        zone = rng.choice(["UTC", "America/New_York", "Asia/Kolkata"])
        compare(rng, rng.choice(SETTINGS), zone)


@pytest.mark.parametrize("setting", [{LEGACY: "true"}, {THREADS: "2"}], ids=["pandas", "threads"])
def test_other_ways_to_call_functions_stay_sparks(setting):
    udfs = [(_seen, sql.StringType(), [0], {})]
    given = sql.StructType().add("v", sql.LongType())
    assert joined.convert(ROWS, joined.read(ROWS, udfs, {}, given)) is not None
    assert joined.convert(ROWS, joined.read(ROWS, udfs, setting, given)) is None
