"""Conversions of pandas functions of groups, which a worker runs instead of Spark's own code.

A task joins several groups to one request. All rows of a request are converted together, and so are
the answers of many groups (:mod:`.frames`, :mod:`.answers`). Spark's own function runs for a group
that is alone in its request or comes in several requests, and for a group that cannot be converted
together with others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any

from shmring.spark.conversions.answers import FrameAnswers, ValueAnswers
from shmring.spark.conversions.frames import (
    JoinedRows,
    Unjoinable,
    has_usual_options,
    window_cutter,
)
from shmring.spark.parts import Part
from shmring.spark.serializers import TaskData


class _Groups(ABC):
    """Runs a user's function over groups or cogroups; a subclass makes the function's arguments."""

    _answers: FrameAnswers | ValueAnswers

    def __init__(self, sparks: Any, variables: Mapping[str, Any]) -> None:
        self._sparks = sparks
        self._settings = variables["runner_conf"]

    def __call__(self, partition: int, data: Iterator[Any]) -> Iterator[Any]:
        if not isinstance(data, TaskData):
            yield from self._sparks(partition, data)
            return
        answers = self._answers
        error: Exception | None = None
        try:
            while (group := data.group()) is not None:
                given = self._given(group)
                if given is not None:
                    yield from answers.add(self._compute(*given))
                else:
                    yield from answers.flush()
                    first, *others = [[part.batch for part in side] for side in group]
                    alone = (first, *others) if others else first
                    data.left_to_spark()
                    yield from self._sparks(partition, iter([alone]))
                if not data.is_ready():
                    yield from answers.flush()
        except Exception as raised:
            error = raised
        # Convert the waiting answers before raising: if one of them causes an error, that error is
        # the earlier one.
        yield from answers.flush()
        if error is not None:
            raise error

    def _given(self, group: list[list[Part]]) -> Any:
        """Return a group's arguments for _compute(); None if Spark has to convert the group."""
        try:
            return self._arguments(*map(self._rows, group))
        except Exception:
            # Another group's values may have caused the error: let Spark convert this group alone.
            return None

    def _rows(self, parts: list[Part]) -> tuple[JoinedRows, int]:
        """Return the converted rows of the group's request, and the index of the group in it."""
        part, request = parts[0], parts[0].request
        if len(parts) > 1 or not part.joined or not has_usual_options():
            raise Unjoinable
        if request.converted is None:
            # Set False before the conversion: if it raises, other groups of the request do not try
            # again.
            request.converted = False
            request.converted = JoinedRows(request.batch, request.rows, self._settings)
        if not request.converted:
            raise Unjoinable
        return request.converted, part.index

    @abstractmethod
    def _arguments(self, *sides: tuple[JoinedRows, int]) -> Any:
        """Return a group's arguments, made of the converted rows and the group's index."""

    @abstractmethod
    def _compute(self, *given: Any) -> Any:
        """Call the user's functions."""


class Frames(_Groups):
    """Conversion of applyInPandas, of groups or cogroups."""

    def __init__(self, sparks: Any, variables: Mapping[str, Any]) -> None:
        super().__init__(sparks, variables)
        # Names of free variables in Spark's function: `name` is the name of the variable with the
        # user's function, and `sides` has for each side the prefix of its variables' names.
        name, sides = "grouped_udf", ("",)
        if name not in variables:
            name, sides = "cogrouped_udf", ("left_", "right_")
        self._function = variables[name]
        self._places: list[Any] = [variables[f"{side}value_offsets"] for side in sides]
        self._keys: list[Any] = [variables[f"{side}key_offsets"] for side in sides]
        self._has_key = variables["num_udf_args"] != len(sides)
        self._answers = FrameAnswers(
            variables["return_type"], variables["output_schema"], self._settings
        )

    def _arguments(self, *sides: tuple[JoinedRows, int]) -> Any:
        frames = [
            rows.frame(group, places)
            for (rows, group), places in zip(sides, self._places, strict=True)
        ]
        if not self._has_key:
            return frames
        side = -1 if frames[0].empty else 0
        rows, group = sides[side]
        return (rows.key(group, self._keys[side]), *frames)

    def _compute(self, *given: Any) -> Any:
        return self._function(*given)


class Series(_Groups):
    """Conversion of pandas_udf as an aggregate of groups, of partitions, or of windows."""

    def __init__(self, sparks: Any, variables: Mapping[str, Any]) -> None:
        super().__init__(sparks, variables)
        self._functions = variables["udfs"]
        given = [(*places, *named.values()) for _, places, named, _ in self._functions]
        self._places = sorted(set(chain.from_iterable(given)))
        # Kind of windows ("bounded" or not) of each function. The list is empty if there are no
        # windows; each function then returns one value for a group.
        self._bounds: list[str] = variables.get("window_bound_types", [])
        self._answers = ValueAnswers(variables["output_schema"], self._settings)

    def _arguments(self, *sides: tuple[JoinedRows, int]) -> Any:
        ((rows, group),) = sides
        series = {place: rows.series(group, place) for place in self._places}
        return series, rows.rows[group] if self._bounds else 1

    def _compute(self, *given: Any) -> Any:
        series, times = given
        return [
            (_called_on_windows(function, series), 1)
            if bounds == "bounded"
            else ([_called(function, series)], times)
            for function, bounds in zip_longest(self._functions, self._bounds)
        ]


def _called(udf: Any, series: Mapping[int, Any]) -> Any:
    function, places, named, _ = udf
    return function(
        *[series[place] for place in places],
        **{name: series[place] for name, place in named.items()},
    )


def _called_on_windows(udf: Any, series: Mapping[int, Any]) -> list[Any]:
    """Call a function with the window of each row; two columns have the windows' bounds."""
    function, (begins, ends, *places), named, _ = udf
    cutters = [window_cutter(series[place]) for place in places]
    named_cutters = {name: window_cutter(series[place]) for name, place in named.items()}
    return [
        function(
            *[cut(begin, end) for cut in cutters],
            **{name: cut(begin, end) for name, cut in named_cutters.items()},
        )
        for begin, end in zip(series[begins].tolist(), series[ends].tolist(), strict=True)
    ]
