"""UDTFs that are called with the values of each row, and yield values: udtf() with useArrow=True.

Spark's own functions run, but Spark's converter gets the answers of many rows together. An answer
waits for others only if all of its values are of simple types. The values of these types cannot
change while the answer waits, and Spark converts each value independently of the others.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import FunctionType, SimpleNamespace
from typing import Any

import pyspark.sql.types as types
from pyspark.sql.conversion import ArrowBatchTransformer

from shmring.spark.conversions.waiting import Waiting
from shmring.spark.parts import Joined
from shmring.spark.serializers import TaskData
from shmring.spark.sparks_code import copied, free_variables

_ROWS = {tuple, types.Row}
_VALUES = {
    *(type(None), bool, int, float, str, bytes, decimal.Decimal),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
}
# An answer with fewer values counts as this number of values. The waiting answers are converted
# when the sum of these numbers exceeds MOST_VALUES (65,536), so at most about 1,024 answers wait.
_LEAST = 64


def of_values(sparks: FunctionType, variables: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return a function to call instead of Spark's; None if Spark's uses pandas."""
    evaluate_rows = variables["evaluate_rows"]
    convert = free_variables(evaluate_rows).get("convert_rows_to_arrow")
    if convert is None:
        return None

    def same(batch: Any) -> Any:
        return batch

    wrapped = {"ArrowBatchTransformer": SimpleNamespace(wrap_struct=same)}

    def evaluate(method: Any, *columns: list[Any], num_rows: int = 1) -> Iterator[Any]:
        answers = _Answers(convert)
        error: Exception | None = None
        call = copied(evaluate_rows, wrapped, {"convert_rows_to_arrow": answers.add})
        try:
            yield from call(method, *columns, num_rows=num_rows)
        except Exception as raised:
            error = raised
        # Convert the waiting answers before raising: if one of them causes an error, that error is
        # the earlier one.
        yield from answers.flush()
        if error is not None:
            cause = error.__context__
            try:
                raise error
            finally:
                # Restore the context: "raise" has replaced it if Spark, the caller, is handling a
                # SkipRestOfInputTableException.
                error.__context__ = cause

    ours = copied(sparks, variables={"evaluate_rows": evaluate})

    def run(partition: int, data: Iterator[Any]) -> Iterator[Any]:
        return (ours if isinstance(data, TaskData) else sparks)(partition, data)

    return run


class _Answers(Waiting):
    """Answers that wait: for each call of the function, the rows that the call has yielded."""

    def __init__(self, convert: FunctionType) -> None:
        super().__init__()
        self._convert = convert
        self._check: Callable[..., Iterator[Any]] = free_variables(convert)["check_return_value"]
        self._method = ""  # name of the UDTF's method that gave the last answer

    def add(self, answer: Any, method: str) -> list[Any]:
        """Take an answer that Spark passes to its converter; return the batches to send now."""
        self._method = method
        rows = [*self._check(answer, method)]
        if set(map(type, rows)) <= _ROWS and set(map(type, chain.from_iterable(rows))) <= _VALUES:
            return self.hold(rows, max(_LEAST, sum(map(len, rows))))
        return [*self.flush(), *self._alone(rows)]

    def _together(self, answers: list[list[Any]]) -> list[Any]:
        (batch,) = self._alone([*chain.from_iterable(answers)])
        return [Joined(batch, [*map(len, answers)])]

    def _alone(self, answer: list[Any]) -> list[Any]:
        batches = self._convert(answer, self._method)
        return [ArrowBatchTransformer.wrap_struct(batch) for batch in batches]
