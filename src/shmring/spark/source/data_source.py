"""A data source in Python, for clusters where the jar cannot be added.

It is ``format("shmring_py")``: Spark refuses to register a Python data source under a name that a
jar has, so with the jar's name this one would work or fail by what else is on the class path.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from shmring.spark.source.columns import schema_of
from shmring.spark.source.options import ReadOptions, WriteOptions
from shmring.spark.source.read import RingReader
from shmring.spark.source.stream import RingStreamReader
from shmring.spark.source.write import RingStreamWriter, RingWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RingSource"]


class RingSource(DataSource):
    """``format("shmring_py")``; the options are those of the jar's ``format("shmring")``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._frame = uuid.uuid4().hex  # Spark makes one for a DataFrame, whose plans get copies

    @classmethod
    def name(cls) -> str:
        """What stands in ``format()``."""
        return "shmring_py"

    def schema(self) -> StructType:
        """The rings' common schema."""
        return schema_of(ReadOptions.of(self.options).rings)

    def reader(self, schema: StructType) -> RingReader:
        """For ``spark.read``."""
        return RingReader(ReadOptions.of(self.options), schema, self._frame)

    def streamReader(self, schema: StructType) -> RingStreamReader:
        """For ``spark.readStream``."""
        return RingStreamReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> RingWriter:
        """For ``df.write.mode("append")``."""
        _check_mode(overwrite)
        return RingWriter(WriteOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RingStreamWriter:
        """For ``df.writeStream`` in append mode."""
        _check_mode(overwrite)
        return RingStreamWriter(WriteOptions.of(self.options), schema)


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise ValueError("a ring is appended to: what is in it cannot be overwritten")
