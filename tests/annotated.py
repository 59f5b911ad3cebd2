"""Functions with Spark's annotations, which run in sidecars and in Spark's own workers alike."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.functions import pandas_udf, udf
from pyspark.sql.types import LongType


def series(x: pd.Series) -> pd.Series:
    return x


def kinds(x: pd.Series) -> pd.Series:
    """What the function sees: the class, its type, and that of the first value that is one."""
    values = x.dropna(how="all") if isinstance(x, pd.DataFrame) else x.dropna()
    first = values.iloc[0] if len(values) else None
    inner = [type(each).__name__ for each in first] if isinstance(first, list | tuple) else ""
    shown = x.dtypes.to_dict() if isinstance(x, pd.DataFrame) else x.dtype
    text = f"{type(x).__name__} {shown} {type(first)}"
    return pd.Series([f"{text} {inner} {first!r}"] * len(x), dtype=object)


def structs(x: pd.DataFrame) -> pd.DataFrame:
    return x


def series_iterator(xs: Iterator[pd.Series]) -> Iterator[pd.Series]:
    yield from xs


def sums(xs: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
    for columns in xs:
        yield functools.reduce(pd.Series.add, columns)


def difference(left: pd.Series, right: pd.Series) -> pd.Series:
    return left - right


def by_keyword(left: pd.Series, *, right: pd.Series) -> pd.Series:
    return left - right


def array(x: pa.Array) -> pa.Array:
    return x


def array_difference(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.subtract(left, right)


def arrays(xs: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield from xs


def array_sums(xs: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    for columns in xs:
        yield functools.reduce(pc.add, columns)


def frames(them: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from them


def frame_kinds(them: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in them:
        columns = {name: kinds(frame[name]) for name in frame}
        yield pd.DataFrame({"kinds": pd.DataFrame(columns).agg("; ".join, axis=1)})


def batches(them: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from them


def frame(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


def group_kinds(rows: pd.DataFrame) -> pd.DataFrame:
    columns = {name: kinds(rows[name]) for name in rows}
    return pd.DataFrame({"kinds": pd.DataFrame(columns).agg("; ".join, axis=1)}).head(1)


def totals(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    shown = ", ".join(f"{each!r} {type(each).__name__}" for each in key)
    return pd.DataFrame({"total": [rows["id"].sum()], "key": [shown]})


def table(rows: pa.Table) -> pa.Table:
    return rows


def table_totals(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
    shown = ", ".join(f"{each!r}" for each in key)
    return pa.table({"total": [pc.sum(rows["id"]).as_py()], "key": [shown]})


def sides(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return left.merge(right, on="k", how="outer").astype("float64")


def keyed_sides(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "rows": [len(left) * 1000 + len(right)]})


def table_sides(left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"rows": [left.num_rows * 1000 + right.num_rows]})


def keyed_table_sides(key: tuple[pa.Scalar, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"total": [left.num_rows], "key": [str(key)]})


def swapped(them: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The columns in another order, one of another type, and one more."""
    for rows in them:
        yield rows.assign(id=rows["id"].astype("int8"), more=1)[["s", "id", "more"]]


def indexed(x: pd.Series) -> pd.Series:
    return x.sample(frac=1, random_state=7)


def objects(x: pd.Series) -> pd.Series:
    return x.astype(object)


def index(x: pd.Series) -> pd.Series:
    return pd.Index(x)


def shorter(x: pd.Series) -> pd.Series:
    return x[1:]


def scalar(x: pd.Series) -> pd.Series:
    return 5


def a_list(x: pd.Series) -> pd.Series:
    return list(x)


def naive(x: pd.Series) -> pd.Series:
    """Times without a zone, which are of the session's."""
    return pd.Series(pd.to_datetime("2024-07-01") + pd.to_timedelta(x, "h"))


def categories(x: pd.Series) -> pd.Series:
    return x.astype("category")


def raising(x: pd.Series) -> pd.Series:
    raise KeyError("no such thing")


def behind(them: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yields when it has seen all."""
    rows = 0
    for each in them:
        rows += len(each)
    yield pd.DataFrame({"rows": [rows]})


class Model:
    """Loads once."""

    def __init__(self) -> None:
        self.factor = 3

    def __call__(self, x: pd.Series) -> pd.Series:
        return x * self.factor


class Scaled:
    def by(self, factor: int, x: pd.Series) -> pd.Series:
        return x * factor


partly = functools.partial(Scaled().by, 3)


@pandas_udf(LongType())
def decorated(x: pd.Series) -> pd.Series:
    return x * 3


def aggregate(x: pd.Series) -> float:
    return x.sum()


@udf(LongType())
def plain(x):
    return x


def numbers(x: int) -> int:
    return x


class Unresolved:
    """Annotated with what nobody imports, as a module may do for type checkers."""

    def series(self, x: pd.Series) -> pd.Series:
        return x

    def batch(self, x: Batch) -> Batch:  # noqa: F821
        return x


def slow(them: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(0.2)  # loads a model, say
    yield from them
