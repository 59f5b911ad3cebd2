"""The pandas frames that Spark's workers make of Arrow data: as that data again, and back.

A frame alone does not tell what it was made from: integers with nulls are floating point numbers
there, decimals, texts and maps are objects, and timestamps have lost their zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from shmring.arrow.batches import fields_of
from shmring.spark.functions.arrow_types import arrow_types
from shmring.spark.functions.planned import Planned
from shmring.spark.functions.stack import callers_locals

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.types import DataType, StructType

__all__ = ["Declared", "Source", "sources_of", "to_arrow"]

_pa: Any = pa


@dataclass(frozen=True, slots=True)
class Source:
    """What a DataFrame's columns are, and how its session makes Arrow data of them.

    Parameters
    ----------
    zone : of timestamps
    large : whether texts and binaries have 64-bit offsets
    """

    schema: StructType
    zone: str
    large: bool

    def as_planned(self, by: Planned) -> Source:
        """With the options of the query that runs, which may have changed since it was made."""
        large = self.large if by.large is None else by.large
        return replace(self, zone=by.zone or self.zone, large=large)


def sources_of(function: object) -> tuple[Source, ...]:
    """The DataFrames whose method `function` was given to, while that pickles the function.

    None with Spark Connect, which pickles functions later.
    """
    from pyspark.sql import DataFrame

    for variables in callers_locals():
        if variables.get("func") is function:
            of: Any = variables.get("self")
            groups = (of._gd1, of._gd2) if hasattr(of, "_gd1") else (of,)
            frames = [getattr(each, "_df", each) for each in groups]
            if all(isinstance(each, DataFrame) for each in frames):
                return tuple(map(_source, frames))
    return ()


def _source(frame: Any) -> Source:
    conf = frame.sparkSession.conf
    return Source(
        frame.schema,
        conf.get("spark.sql.session.timeZone"),
        conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true",
    )


def to_arrow(frame: pd.DataFrame, source: Source | None, zone: str | None = None) -> pa.RecordBatch:
    """What Spark made this frame of; as pyarrow sees the frame where the source is not known.

    Times without a zone are taken for instants then, if there is a `zone` to see them in.
    """
    if source is None:
        if zone is not None:
            frame = frame.assign(**_instants(frame, zone))
        return pa.RecordBatch.from_pandas(frame, preserve_index=False)
    schema = _given(source.schema, list(frame.columns))
    types = arrow_types(schema, source.zone, large=source.large)
    arrays: list[Any] = []
    fields: list[pa.Field[Any]] = []
    for i, field in enumerate(schema.fields):
        array = _column_to_arrow(frame.iloc[:, i], field.dataType, types[i], source)
        arrays.append(array)
        fields.append(pa.field(field.name, array.type, nullable=field.nullable))
    return _pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _given(schema: StructType, names: list[str]) -> StructType:
    """The columns that Spark gives: of a frame that is cogrouped with itself it may forget some."""
    if len(names) == len(schema.fields):
        return schema
    return type(schema)([schema[name] for name in names])


def _instants(frame: Any, zone: str) -> dict[str, pd.Series[Any]]:
    return {
        name: column.dt.tz_localize(zone, ambiguous=False).dt.as_unit("us")
        for name, column in frame.items()
        if column.dtype.kind == "M" and getattr(column.dtype, "tz", None) is None
    }


def _column_to_arrow(column: Any, kind: DataType, wanted: pa.DataType | None, of: Source) -> Any:
    spark: Any = import_module("pyspark.sql.pandas.types")
    convert = spark._create_converter_from_pandas(
        _stored(kind), timezone=of.zone, error_on_duplicated_field_names=False
    )
    return _pa.Array.from_pandas(convert(column), type=wanted)


def _stored(kind: Any) -> Any:
    """What the values in Spark's frames are: users' own types are not known to the workers."""
    name = type(kind).__name__
    if name == "ArrayType":
        return type(kind)(_stored(kind.elementType), kind.containsNull)
    if name == "MapType":
        return type(kind)(_stored(kind.keyType), _stored(kind.valueType), kind.valueContainsNull)
    if name == "StructType":
        fields = [type(f)(f.name, _stored(f.dataType), f.nullable) for f in kind.fields]
        return type(kind)(fields)
    return _stored(kind.sqlType()) if hasattr(kind, "sqlType") else kind


@dataclass(frozen=True, slots=True)
class Declared:
    """What Spark's method was declared with; a sidecar's answers are made that, from what it takes.

    Parameters
    ----------
    schema : None if it is not known: then the answers stay what they are
    large : whether texts and binaries have 64-bit offsets
    zone : where the sidecar got instants for what may have been times without a zone
    objects : whether Spark's worker knows users' own types, and takes their objects
    guessed : whether the sidecar gets what pyarrow sees in a frame whose types are not known
    """

    schema: StructType | None
    large: bool
    zone: str | None = None
    objects: bool = True
    guessed: bool = False

    def integers(self, answer: pa.RecordBatch) -> pa.RecordBatch:
        """An answer to a frame, with integers again where pandas made floating point numbers.

        Spark's workers do so with the frames of other functions. A column with other numbers stays.
        """
        if not self.guessed or self.schema is None:
            return answer
        columns: list[Any] = cast("Any", answer).columns
        types = self._types(self.schema)
        if not columns or len(types) != len(columns):
            return answer
        arrays = list(map(_as_integers, columns, types))
        return _pa.RecordBatch.from_arrays(arrays, names=answer.schema.names)

    def batch(self, answer: pa.RecordBatch) -> pa.RecordBatch:
        """An answer, with exactly the names and types that Spark's workers look for."""
        if self.schema is None:
            return answer
        arrays: list[Any] = []
        columns: list[Any] = cast("Any", answer).columns
        for column, wanted in zip(columns, self._types(self.schema), strict=True):
            if self.zone is not None and wanted == pa.timestamp("us"):
                column = _local(column, self.zone)
            arrays.append(column if wanted is None else _as(column, wanted))
        return _pa.RecordBatch.from_arrays(arrays, names=self.schema.names)

    def table(self, answers: Iterable[pa.RecordBatch]) -> pa.Table:
        """All answers; there may be none."""
        batches = list(map(self.batch, answers))
        if batches or self.schema is None:
            return pa.Table.from_batches(batches)
        types = [kind or pa.null() for kind in self._types(self.schema)]
        return pa.schema(list(zip(self.schema.names, types, strict=True))).empty_table()

    def frame(self, data: pa.RecordBatch | pa.Table) -> pd.DataFrame:
        """A frame of which Spark's worker makes exactly this data, that :meth:`batch` gave."""
        import pandas as pd

        plain: Any = data
        if self.schema is None:
            return plain.to_pandas()
        columns = [
            _column_to_pandas(column, field.dataType if self.objects else _stored(field.dataType))
            for column, field in zip(self._whole(plain), self.schema.fields, strict=True)
        ]
        frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(len(plain)))
        frame.columns = self.schema.names
        return frame

    @staticmethod
    def _whole(data: Any) -> list[Any]:
        columns = data.columns
        return [c.combine_chunks() for c in columns] if isinstance(data, pa.Table) else columns

    def _types(self, schema: StructType) -> list[pa.DataType | None]:
        return arrow_types(schema, "UTC", large=self.large)


def _local(array: Any, zone: str) -> Any:
    if getattr(array.type, "tz", None) is None:
        return array
    return _pa.Array.from_pandas(array.to_pandas().dt.tz_convert(zone).dt.tz_localize(None))


def _as(array: Any, wanted: pa.DataType) -> Any:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    same = _with_names(array.type, wanted)
    if same != array.type:
        array = array.view(same)
    return array if array.type == wanted else array.cast(wanted)


def _as_integers(array: Any, wanted: pa.DataType | None) -> Any:
    if wanted is None or not (pa.types.is_integer(wanted) and pa.types.is_floating(array.type)):
        return array
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        return array


def _with_names(kind: Any, wanted: Any) -> pa.DataType:
    """The type with the names of another one: of structs, whose fields a cast looks up by name."""
    if not pa.types.is_nested(kind):
        return kind
    fields = [
        pa.field(new.name, _with_names(old.type, new.type), nullable=old.nullable)
        for old, new in zip(fields_of(kind), fields_of(wanted), strict=True)
    ]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        entry = fields_of(fields[0].type)
        return pa.map_(entry[0], entry[1])
    return pa.list_(fields[0])


def _column_to_pandas(column: Any, kind: DataType) -> pd.Series[Any]:
    import pandas as pd

    if pa.types.is_nested(column.type) or hasattr(kind, "sqlType"):
        # Not by numpy's arrays, in which a null makes an integer a floating point number.
        return pd.Series([_plain(value, kind) for value in column.to_pylist()], dtype=object)
    if pa.types.is_timestamp(column.type):
        return column.to_pandas()
    return pd.Series(pd.arrays.ArrowExtensionArray(column))


def _plain(value: Any, kind: Any, struct: Callable[..., Any] = dict) -> Any:
    """What Spark takes for a value: as pyarrow gives it, save that maps are dictionaries.

    Of a user's own type and of a variant Spark takes the objects; those are made of rows.
    """
    if value is None:
        return None
    name = type(kind).__name__
    if name == "ArrayType":
        return [_plain(each, kind.elementType, struct) for each in value]
    if name == "MapType":
        return {key: _plain(each, kind.valueType, struct) for key, each in value}
    if name == "StructType":
        values = {f.name: _plain(value[f.name], f.dataType, struct) for f in kind.fields}
        return struct(**values)
    types: Any = import_module("pyspark.sql.types")
    if name == "VariantType":
        return types.VariantVal(value["value"], value["metadata"])
    if hasattr(kind, "sqlType"):
        return kind.deserialize(_plain(value, kind.sqlType(), types.Row))
    return value
