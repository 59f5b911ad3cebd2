"""UDTFs that are called with the values of each row, and yield values: udtf() with useArrow=True.

Spark's own function runs, except for its loop over the rows of a batch: here Spark's converter gets
the answers of many rows at once. An answer waits only if all of its values are of simple types,
because these cannot change, and each is converted by itself.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from types import FunctionType
from typing import Any

import pyspark.sql.types as types
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.conversion import ArrowBatchTransformer
from pyspark.sql.functions import SkipRestOfInputTableException

from shmring.spark.conversions.waiting import Waiting
from shmring.spark.exchange import Joined, TaskData
from shmring.spark.sparks_code import copied, free_variables

_ROWS = {tuple, types.Row}
_VALUES = {
    *(type(None), bool, int, float, str, bytes, decimal.Decimal),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
}
_LEAST = 64  # fewest values that an answer counts as, so at most 1,024 answers wait


def of_values(sparks: FunctionType, variables: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Replace Spark's function, unless it converts by pandas."""
    convert = free_variables(variables["evaluate_rows"]).get("convert_rows_to_arrow")
    if convert is None:
        return None
    check: Callable[..., Iterator[Any]] = free_variables(convert)["check_return_value"]

    def evaluate(method: Any, *columns: list[Any], num_rows: int = 1) -> Iterator[Any]:
        answers = _Answers(convert, method.__name__)
        error: Exception | None = None
        try:
            for row in zip(*columns, strict=True) if columns else repeat((), num_rows):
                yield from answers.add(list(check(_called(method, row), method.__name__)))
        except Exception as raised:
            error = raised
        yield from answers.flush()  # an error of an earlier answer comes first
        if error is not None:
            cause = error.__context__
            try:
                raise error
            finally:  # in terminate() after a skip, "raise" sets the skip as the context
                error.__context__ = cause

    ours = copied(sparks, variables={"evaluate_rows": evaluate})

    def run(partition: int, data: Iterator[Any]) -> Iterator[Any]:
        return (ours if isinstance(data, TaskData) else sparks)(partition, data)

    return run


def _called(method: Any, row: tuple[Any, ...]) -> Any:
    try:
        return method(*row)
    except SkipRestOfInputTableException:
        raise
    except Exception as error:
        raise PySparkRuntimeError(  # noqa: B904  (with the same context as Spark's)
            errorClass="UDTF_EXEC_ERROR",
            messageParameters={"method_name": method.__name__, "error": str(error)},
        )


class _Answers(Waiting):
    """Answers that wait: for each call of the function, the rows that the call has yielded."""

    def __init__(self, convert: Callable[..., list[Any]], method: str) -> None:
        super().__init__()
        self._convert, self._method = convert, method

    def add(self, rows: list[Any]) -> list[Any]:
        """Take an answer; return the batches to send now."""
        if set(map(type, rows)) <= _ROWS and set(map(type, chain.from_iterable(rows))) <= _VALUES:
            return self.hold(rows, max(_LEAST, sum(map(len, rows))))
        return [*self.flush(), *self._alone(rows)]

    def _together(self, answers: list[list[Any]]) -> list[Any]:
        (batch,) = self._alone([*chain.from_iterable(answers)])
        return [Joined(batch, [*map(len, answers)])]

    def _alone(self, answer: list[Any]) -> list[Any]:
        batches = self._convert(answer, self._method)
        return [ArrowBatchTransformer.wrap_struct(batch) for batch in batches]
