"""The rows of a request by group, and several answers joined to one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_pa: Any = pa  # typed as Any, because its stubs lack names


@dataclass
class Request:
    """Rows of one request: they belong to one side, and to the groups that the task has joined."""

    batch: Any
    rows: Sequence[int]  # number of rows of each group; empty if there are no groups
    goes_on: bool  # whether more rows of the last group follow
    side: int  # 0, or 1 for the right side of a cogroup
    converted: Any = None  # the converted rows; None before the conversion, False if it failed


@dataclass
class Part:
    """The rows of one group in one request: all of the group, unless more follow."""

    request: Request
    index: int  # place of the group in the request
    begin: int  # first row of the group in the request

    @property
    def goes_on(self) -> bool:
        """Whether more rows of the group follow, in the next part."""
        return self.request.goes_on and self.index == len(self.request.rows) - 1

    @property
    def batch(self) -> Any:
        """The rows, in the memory of the request."""
        whole = self.request.batch
        return whole if not self.joined else whole.slice(self.begin, self.request.rows[self.index])

    @property
    def joined(self) -> bool:
        """Whether the request has other groups, too."""
        return len(self.request.rows) > 1


@dataclass
class Joined:
    """Several answers as one batch."""

    batch: Any
    rows: Sequence[int]  # number of rows of each answer

    @property
    def schema(self) -> pa.Schema:
        """The schema of each answer."""
        return self.batch.schema


def joined(batches: list[Any]) -> Joined | None:
    """Join batches of the same schema; return None if their columns cannot be joined."""
    first = batches[0]
    try:
        columns = [
            _pa.concat_arrays([batch.column(i) for batch in batches])
            for i in range(first.num_columns)
        ]
    except pa.ArrowException:
        return None
    whole = _pa.RecordBatch.from_arrays(columns, schema=first.schema)
    return Joined(whole, [batch.num_rows for batch in batches])
