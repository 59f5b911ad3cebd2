"""Odd functions: conversions against Spark's own function, as in test_conversions_random."""

from __future__ import annotations

import datetime
import decimal
import random
import threading
import weakref

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark.sql.types as sql
import pytest
from joined import (
    AGGREGATES,
    FRAMES,
    MAPS,
    SCALARS,
    change,
    compare,
    compare_batches,
    convert,
    describe,
    of_pandas_2,
    places,
    read,
)
from pyspark.sql.conversion import ArrowBatchTransformer

from shmring.spark.conversions.batches import _ToPandas

pytestmark = [
    pytest.mark.spark_version(since="4.3"),
    of_pandas_2,
    pytest.mark.filterwarnings("ignore"),  # pandas gives the same warnings both ways
]

SETTINGS = {"spark.sql.session.timeZone": "UTC"}
SEEN = {"seen": "string"}
ALL = {"k": "long", "v": "double", "s": "string", "n": "long"}
# Groups of two rows: v and n have nulls in some of them.
BATCHES = [
    pa.record_batch(
        {
            "k": [k, k],
            "v": pa.array([k / 2, None if k == 2 else np.inf], pa.float64()),
            "s": [f"s{k}", None],
            "n": pa.array([None if k in (1, 4) else k, 1], pa.int64()),
        }
    )
    for k in range(6)
]


def _schema(returned):
    names = returned.items()
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in names]
    return sql.StructType.fromJson({"fields": fields})


def compare_frames(function, returned):
    """Compare a function of frames; it gets a group, or a batch, at a time."""
    udf = function, _schema(returned), places([0], [0, 1, 2, 3]), {}
    frames = [[batch] for batch in BATCHES]
    compare(random.Random(1), FRAMES, [udf], [frames], SETTINGS)
    udf = (lambda frames: map(function, frames)), udf[1], None, {}
    compare_batches(MAPS, [udf], BATCHES, SETTINGS)


def test_integers_beside_texts_are_those_that_spark_gives_such_a_frame():
    columns = {"n": pa.array([1, None], pa.int16()), "s": pa.array(["text", None])}
    function = lambda frames: (pd.DataFrame({"seen": [describe(frame)]}) for frame in frames)  # noqa: E731
    udf = function, _schema(SEEN), None, {}
    compare_batches(MAPS, [udf], [pa.record_batch(columns)] * 2, SETTINGS)


def test_names_that_a_function_changes_in_place_are_those_of_its_own_frame():
    def renamed(frame):
        before = [*frame.columns, "v" in frame]
        frame.columns.values[1] = "changed"
        return pd.DataFrame({"seen": [f"{before} {[*frame.columns]}"]})

    for _ in range(2):  # the second task knows the layout of the frame
        compare_frames(renamed, SEEN)


# --- values and frames that a function keeps ------------------------------------------------------

BUFFER, DAY = bytearray(b"-"), np.array(0)


@pytest.mark.parametrize(
    ("make", "declared"),
    [
        (lambda: BUFFER, "string"),
        (lambda: BUFFER, "binary"),
        (lambda: memoryview(BUFFER), "string"),
        (lambda: memoryview(BUFFER), "binary"),
        (lambda: DAY, "date"),
    ],
)
def test_object_that_a_function_changes_later_has_its_value_of_the_call(make, declared):
    def function(frame):
        BUFFER[:] = b"%d" % frame["k"][0]
        DAY[()] = frame["k"][0]
        cells = np.full(2, None)
        cells[0] = make()
        return pd.DataFrame({"n": [1, 2], "made": cells})

    compare_frames(function, {"n": "long", "made": declared})


def _keeps():
    kept = []

    def changes_all(frame):
        kept.append(frame)
        for each in kept:
            each.iloc[0, 1] = len(kept)
            each["s"].values[:] = "changed"
        return pd.DataFrame({"seen": [repr(kept)]})

    return changes_all


def _looks_back():
    kept = []

    def still_there(frame):
        there = [each() is None for each in kept]
        kept.append(weakref.ref(frame))
        return pd.DataFrame({"seen": [repr(there)]})

    return still_there


def _in_a_thread(frame):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(change(frame)))
    thread.start()
    thread.join()
    return pd.DataFrame({"seen": seen})


def _changed_in_place(frame):
    frame.sort_values("v", ascending=False, inplace=True)
    frame.rename(columns={"s": "t"}, inplace=True)
    frame.insert(1, "more", frame.pop("n"))
    del frame["t"]
    frame.fillna(7, inplace=True)
    frame.attrs["a"] = [1]
    frame.index.name = "i"
    return pd.DataFrame({"seen": [describe(frame)]})


@pytest.mark.parametrize("function", [_keeps(), _looks_back(), _in_a_thread, _changed_in_place])
def test_frames_are_a_functions_own(function):
    compare_frames(function, SEEN)


def test_series_are_a_functions_own():
    kept = []

    def changes_all(*given):
        kept.extend(given)
        for each in kept:
            each.iloc[0] = each.iloc[-1]
            each.name = "changed"
        return pd.Series([repr(list(map(describe, kept)))] * len(given[0]))

    day = pa.array([datetime.date(2000, 1, 1), datetime.date(1, 1, 1)])
    batches = [batch.append_column("d", day) for batch in BATCHES]
    before = str(pa.Table.from_batches(batches).to_pydict())
    compare_batches(
        SCALARS, [(changes_all, sql.StringType(), [0, 1, 4, 2, 3, 1], {})], batches, SETTINGS
    )
    assert str(pa.Table.from_batches(batches).to_pydict()) == before


def test_series_of_numbers_are_made_without_sparks_conversion(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("Spark converts")

    udf = (lambda k, v: k + v), sql.DoubleType(), [0, 1], {}
    function = convert(SCALARS, read(SCALARS, [udf], SETTINGS))
    monkeypatch.setattr(ArrowBatchTransformer, "to_pandas", refuse)
    (answer,) = function(0, iter([BATCHES[2].select(["k", "v"])]))
    assert answer.column(0).to_pylist() == [3.0, None]


def test_columns_get_the_schema_that_a_later_spark_may_ask_for():
    batch = BATCHES[0].select(["k"])
    asked = {"timezone": "UTC", "schema": sql.StructType().add("named", sql.LongType())}
    (ours,) = _ToPandas().to_pandas(batch, **asked)
    (sparks,) = ArrowBatchTransformer.to_pandas(batch, **asked)
    pd.testing.assert_series_equal(ours, sparks)
    assert ours.name == "named"


# --- frames that a function returns ---------------------------------------------------------------


class _Frame(pd.DataFrame):
    """A frame that is not exactly one."""


class _Text(str):
    """A string that is not exactly one."""


def _of_columns(columns):
    def named(frame):
        frame.columns = columns
        return frame

    return named


def _flagged(frame):
    frame = frame.set_flags(allows_duplicate_labels=False)
    frame.index = [0, 0]
    return frame


def _with_attrs(frame):
    frame.attrs["lock"] = threading.Lock()
    return frame


def _read_only(frame):
    for block in frame._mgr.blocks:
        block.values.flags.writeable = False
    return frame


RETURNED = {
    "same": lambda frame: frame,
    "subclass": _Frame,
    "duplicates without the flag": _flagged,
    "attrs that cannot be copied": _with_attrs,
    "read-only": _read_only,
    "reversed rows": lambda frame: frame[::-1],
    "every second row": lambda frame: pd.concat([frame] * 3)[::2],
    "transposed": lambda frame: frame.T.T.astype({"k": "int64", "v": float, "n": float}),
    "reindexed": lambda frame: frame.set_index(pd.Index([5.5, None])),
    "by place": _of_columns(range(4)),
    "numbered names": _of_columns([3, 2, 1, 0]),
    "categories as names": _of_columns(pd.CategoricalIndex(["k", "v", "s", "n"])),
    "names of two levels": _of_columns(pd.MultiIndex.from_product([["k", "v"], ["s", "n"]])),
    "other names": _of_columns(["n", "s", "v", "k"]),
    "names of a subclass": _of_columns([_Text("k"), "v", "s", "n"]),
    "a named index of names": _of_columns(pd.Index(["k", "v", "s", "n"], name="names")),
    "texts of a subclass": lambda frame: frame.assign(s=[_Text("a"), np.str_("b")]),
    "bytes as texts": lambda frame: frame.assign(s=[b"a", "b"]),
    "numbers as objects": lambda frame: frame.astype(object),
    "other missing texts": lambda frame: frame.assign(s=[pd.NA, np.nan]),
    "instants as texts": lambda frame: frame.assign(s=[pd.Timestamp(0), pd.NaT]),
    "no rows": lambda frame: frame[frame["k"] == 1],
}


@pytest.mark.parametrize("name", RETURNED)
def test_returned_frames_become_what_spark_makes_of_them(name):
    compare_frames(RETURNED[name], ALL)


def test_dates_of_other_types_become_what_spark_makes_of_them():
    days = [datetime.date(2000, 1, 1), datetime.datetime(2000, 1, 1, 12), pd.Timestamp(0), 7]

    def function(frame):
        return pd.DataFrame({"d": [days[frame["k"][0] % 4], None]}, dtype=object)

    compare_frames(function, {"d": "date"})


def test_error_is_sparks_if_several_columns_are_at_fault():
    def function(frames):
        return (pd.DataFrame({"a": [np.nan] * 2, "b": [decimal.Decimal(1)] * 2}) for _ in frames)

    udf = function, _schema({"a": "string", "b": "boolean"}), None, {}
    large = {"spark.sql.execution.arrow.useLargeVarTypes": "true"}
    compare_batches(MAPS, [udf], BATCHES, {**SETTINGS, **large})


# --- options of pandas ----------------------------------------------------------------------------

USUAL = {
    "mode.use_inf_as_na": False,
    "mode.copy_on_write": False,
    "mode.data_manager": "block",
    "mode.string_storage": "python",
    "future.infer_string": False,
}
OPTIONS = [
    ("mode.use_inf_as_na", True),
    ("mode.copy_on_write", True),
    ("mode.copy_on_write", "warn"),
    ("mode.data_manager", "array"),
    ("mode.string_storage", "pyarrow"),
    ("future.infer_string", True),
]


@pytest.fixture
def usual():
    """Restores pandas' options, which functions set."""
    before = {name: pd.get_option(name) for name in USUAL}
    yield
    for name, value in before.items():
        pd.set_option(name, value)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("groups", [range(6), range(3, 5)], ids=["all", "some"])
@pytest.mark.parametrize(("option", "value"), OPTIONS)
def test_options_of_pandas_change_what_they_change_in_spark(option, value, groups):
    def set_from(values):
        pd.set_option(option, value if values[0] in groups else USUAL[option])

    def seen(frame, tell):
        set_from(frame["k"])
        return pd.DataFrame({"seen": [tell(frame)]})

    def returned(frame):
        set_from(frame["k"])
        return frame.copy()

    def series(k, v):
        set_from(k)
        return change(v)

    def value_of(k, v):
        set_from(k)
        return float("inf")

    set_from([0])
    compare_frames(lambda frame: seen(frame, describe), SEEN)
    compare_frames(lambda frame: seen(frame, change), SEEN)
    compare_frames(returned, ALL)
    for function, declared in ((series, sql.StringType()), (value_of, sql.DoubleType())):
        compare(
            random.Random(1),
            AGGREGATES,
            [(function, declared, [0, 1], {})],
            [[[batch] for batch in BATCHES]],
            SETTINGS,
        )
    udf = (lambda k, v: returned(pd.DataFrame({"k": k, "v": v}))["v"]), sql.DoubleType(), [0, 1], {}
    compare_batches(SCALARS, [udf], BATCHES, SETTINGS)
