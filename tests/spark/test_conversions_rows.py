"""Random rows, plain functions, UDTFs and settings: conversions against Spark's own functions.

There is no JVM: both get the same batches. ``SHMRING_RANDOM_GROUPS`` sets the number of cases in
`make test-long`; the default is 3000.
"""

from __future__ import annotations

import array
import datetime
import decimal
import itertools
import os
import random
import time

import joined
import numpy as np
import pyarrow as pa
import pyspark.sql.types as sql
import pytest
from joined import ROWS, TABLES
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.functions import SkipRestOfInputTableException
from pyspark.sql.pandas.types import to_arrow_type

from shmring.spark.conversions import waiting
from shmring.spark.parts import Joined
from shmring.spark.serializers import TaskData

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
# CHANGE: edit this for a new type between Spark and Arrow
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
# CHANGE: edit this for a new type between Spark and Arrow
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


def _given(rng, zone):
    """Make batches, and the type of their rows."""
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
    return given, batches


def compare(rng, settings, zone):
    """Call functions with random batches both ways."""
    given, batches = _given(rng, zone)
    kinds = given.fields
    udfs = []
    for _ in range(rng.randrange(1, 4)):
        function, returned = (_seen, sql.StringType()) if rng.random() < 0.5 else _returning(rng)
        taken = rng.choices(range(len(kinds)), k=rng.randrange(4)) if kinds else []
        named = {"k": rng.randrange(len(kinds))} if kinds and rng.random() < 0.2 else {}
        udfs.append((function, returned, taken, named))
    sparks = joined.read(ROWS, udfs, settings, given)
    ours = joined.convert(ROWS, joined.read(ROWS, udfs, settings, given))
    assert _outcome(ours(0, iter(batches))) == _outcome(sparks(0, iter(batches)))


# --- UDTFs ----------------------------------------------------------------------------------------

ODD = [
    *("none", "empty", "later", "dicts", "rows", "lists", "longer", "bare", "same", "changes"),
    *("raises", "breaks", "skips", "number"),
]


def _table(rng):
    """Return a UDTF whose answers are of one kind for the most part, and the type of its rows."""
    returned = sql.StructType()
    common, rare = [], []
    for place in range(rng.randrange(1, 4)):
        kind = rng.choice(RETURNED)
        returned.add(f"c{place}", kind, rng.random() < 0.9 or kind == sql.NullType())
        for values in (common, rare):
            fitting = [each for each in rng.sample(RESULTS, 12) if _fits(each, kind)]
            values.append(rng.choice(fitting or [None]))
    if rng.random() < 0.2:
        rare[-1] = rng.choice(RESULTS)
    odd, share, seed = rng.sample(ODD, 2), rng.choice([0, 0.05, 0.3]), rng.randrange(1 << 30)
    ends = rng.choice([None, "list", *odd])

    class Table:
        def __init__(self):
            self.calls = 0
            self.kept = [*common]

        def eval(self, *given, **named):
            joined.called.append(repr((given, named)))
            self.calls += 1
            local = random.Random(seed + self.calls)
            return self.rows(local, local.choice(odd) if local.random() < share else "list")

        def rows(self, local, way):
            values = rare if local.random() < share else common
            rows = [tuple(values)] * local.choice([0, 1, 1, 3])
            if way == "raises":
                raise ValueError("of a call")
            if way == "skips":
                raise SkipRestOfInputTableException("enough")
            if way == "changes":
                self.kept[0] = local.choice(RESULTS)
            names = [f"c{place}" for place in range(len(values))]
            return {
                "none": lambda: None,
                "empty": lambda: iter(()),
                "number": lambda: 7,
                "later": lambda: (row for row in rows),
                "dicts": lambda: [dict(zip(names, row, strict=True)) for row in rows],
                "rows": lambda: [sql.Row(*names)(*row) for row in rows],
                "lists": lambda: [list(row) for row in rows],
                "longer": lambda: [(*row, 1) for row in rows],
                "bare": lambda: [row[0] for row in rows],
                "same": lambda: [self.kept] * 2,
                "changes": lambda: [(self.kept,) * len(values)],
                "breaks": lambda: (row if row else 1 // 0 for row in [*rows, ()]),
            }.get(way, lambda: rows)()

        def cleanup(self):
            joined.called.append("cleanup")

    if ends is not None:
        Table.terminate = lambda self: self.rows(random.Random(seed), ends)
    return Table, returned


def _single(answers):
    """Yield the batch of each answer."""
    for answer in answers:
        if isinstance(answer, Joined):
            ends = [*itertools.accumulate(answer.rows)]
            assert ends[-1] == answer.batch.num_rows
            for end, rows in zip(ends, answer.rows, strict=True):
                yield answer.batch.slice(end - rows, rows)
        else:
            yield answer


def compare_tables(rng, settings, zone):
    """Call a UDTF with the values of random batches both ways."""
    given, batches = _given(rng, zone)
    handler, returned = _table(rng)
    taken = rng.choices(range(len(given)), k=rng.randrange(4)) if len(given) else []
    named = {"k": rng.randrange(len(given))} if len(given) and rng.random() < 0.2 else {}
    table = handler, returned, taken, named, settings, given
    rows, error, called = _outcome(joined.read_table(*table)(0, iter(batches)))
    ours = joined.convert(TABLES, joined.read_table(*table))
    found = _outcome(_single(ours(0, TaskData(None, iter(batches)))))
    assert found[:2] == (rows, error)
    if error is None:
        assert found[2] == called
    else:  # a method may run for later rows before an error of an earlier row's answer
        assert found[2][: len(called) - 1] == called[:-1]
        assert found[2][-1] == called[-1] == "cleanup"


def test_answers_to_many_rows_are_converted_at_once(monkeypatch):
    monkeypatch.setattr(waiting, "_PATIENCE", float("inf"))

    class Table:
        def eval(self, value):
            yield from [(value, str(value))] * (value % 3)

    given, returned = (sql.StructType().add("v", sql.LongType()) for _ in range(2))
    function = joined.read_table(Table, returned.add("s", sql.StringType()), [0], {}, {}, given)
    batches = [pa.record_batch({"v": [*range(start, start + 1000)]}) for start in (0, 1000)]
    ours = joined.convert(TABLES, function)
    answers = [*ours(0, TaskData(None, iter(batches)))]
    assert {type(answer) for answer in answers} == {Joined}
    assert [len(answer.rows) for answer in answers] == [1000, 1000]
    # Without rings, Spark's own function answers.
    assert len([*joined.convert(TABLES, function)(0, iter(batches))]) == 2000


def test_error_of_terminate_keeps_its_cause_after_a_skip():
    class Table:
        def eval(self, value):
            raise SkipRestOfInputTableException("enough")

        def terminate(self):
            raise ValueError("of the end")

    given = sql.StructType().add("v", sql.LongType())
    table = joined.read_table(Table, given, [0], {}, {}, given)
    one = pa.record_batch({"v": [1]})
    ways = [_outcome(table(0, iter([one])))]
    ways.append(_outcome(joined.convert(TABLES, table)(0, TaskData(None, iter([one])))))
    assert ways[1] == ways[0]
    assert ways[0][1][1] == "ValueError: of the end"


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
        way = compare_tables if seed % 3 == 2 else compare
        way(rng, rng.choice(SETTINGS), zone)


@pytest.mark.parametrize("setting", [{LEGACY: "true"}, {THREADS: "2"}], ids=["pandas", "threads"])
def test_other_ways_to_call_functions_stay_sparks(setting):
    udfs = [(_seen, sql.StringType(), [0], {})]
    given = sql.StructType().add("v", sql.LongType())
    assert joined.convert(ROWS, joined.read(ROWS, udfs, {}, given)) is not None
    assert joined.convert(ROWS, joined.read(ROWS, udfs, setting, given)) is None


def test_udtf_that_converts_by_pandas_stays_sparks():
    setting = {"spark.sql.legacy.execution.pythonUDTF.pandas.conversion.enabled": "true"}
    given = sql.StructType().add("v", sql.LongType())
    handler, _ = _table(random.Random(0))
    table = joined.read_table(handler, given, [0], {}, setting, given)
    assert joined.convert(TABLES, table) is None
