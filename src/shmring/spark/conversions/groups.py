"""Conversions of pandas functions of groups, which a worker runs instead of Spark's own code.

A task joins groups to requests. The rows of a request are converted once, and so are the answers
of many groups (:mod:`.frames`, :mod:`.answers`). Spark's own function gets each group that comes
alone, or in several batches, and each one that cannot be converted together with others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from shmring.spark.conversions.answers import FrameAnswers, ValueAnswers
from shmring.spark.conversions.frames import (
    JoinedFrames,
    JoinedRows,
    JoinedSeries,
    Unjoinable,
    window_cutter,
)
from shmring.spark.exchange import Part, Request, TaskData


class _Groups(ABC):
    """Runs a function over groups, or cogroups; subclasses make its arguments."""

    def __init__(self, sparks: Any, variables: Mapping[str, Any]) -> None:
        self._sparks = sparks
        self._of = variables
        self._settings = variables["runner_conf"]
        self._answers: FrameAnswers | ValueAnswers = self._begin()
        # The last request of each side, and its converted rows; None if they cannot be joined.
        self._converted: list[tuple[Request | None, Any]] = [(None, None), (None, None)]

    def __call__(self, partition: int, data: Iterator[Any]) -> Iterator[Any]:
        if not isinstance(data, TaskData):
            return self._sparks(partition, data)
        return self._run(partition, data)

    def _run(self, partition: int, data: TaskData) -> Iterator[Any]:
        answers = self._answers
        error: Exception | None = None
        try:
            while (group := data.group()) is not None:
                given = self._given(group)
                if given is not None:
                    yield from answers.add(self._compute(*given))
                else:
                    yield from answers.flush()
                    yield from self._sparks(partition, iter([self._batches(group)]))
                if not data.is_ready():
                    yield from answers.flush()
        except Exception as raised:
            error = raised
        yield from answers.flush()  # an error of an earlier answer comes first
        if error is not None:
            raise error

    def _given(self, group: list[list[Part]]) -> Any:
        """Return the function's arguments; None if Spark's own function has to make them."""
        try:
            return self._arguments(*[self._rows(side, parts) for side, parts in enumerate(group)])
        except Exception:  # another group may be at fault: let Spark convert this group alone
            return None

    def _rows(self, side: int, parts: list[Part]) -> tuple[Any, int]:
        """Return the converted rows of the group's request, and the group's index there."""
        part = parts[0]
        if len(parts) > 1 or not part.joined:
            raise Unjoinable
        request, rows = self._converted[side]
        if request is not part.request:
            self._converted[side] = part.request, None  # a failure is not repeated for each group
            rows = self._convert(side, part.request)
            self._converted[side] = part.request, rows
        if rows is None:
            raise Unjoinable
        return rows, part.index

    def _batches(self, group: list[list[Part]]) -> Any:
        """Return the group as Spark's function takes it."""
        return [part.batch for part in group[0]]

    @abstractmethod
    def _begin(self) -> FrameAnswers | ValueAnswers:
        """Read the call's settings from Spark's variables; return what collects its answers."""

    @abstractmethod
    def _convert(self, side: int, request: Request) -> JoinedRows:
        """Convert the rows of a request."""

    @abstractmethod
    def _arguments(self, *sides: tuple[Any, int]) -> Any:
        """Return a group's arguments, made of the converted rows and the group's index."""

    @abstractmethod
    def _compute(self, *given: Any) -> Any:
        """Call the user's functions."""


class Frames(_Groups):
    """Conversion of applyInPandas."""

    _name, _sides = "grouped_udf", ("",)  # Spark's names: the function, and a prefix for each side

    def _begin(self) -> FrameAnswers:
        of = self._of
        self._function = of[self._name]
        self._has_key = of["num_udf_args"] != len(self._sides)
        return FrameAnswers(of["return_type"], of["output_schema"], self._settings)

    def _convert(self, side: int, request: Request) -> JoinedFrames:
        name = self._sides[side]
        places = self._of[f"{name}value_offsets"], self._of[f"{name}key_offsets"]
        return JoinedFrames(*places, request.batch, request.rows, self._settings)

    def _arguments(self, *sides: tuple[JoinedFrames, int]) -> Any:
        frames = [rows.frame(group) for rows, group in sides]
        if not self._has_key:
            return frames
        rows, group = sides[0] if not frames[0].empty else sides[-1]
        return (rows.key(group), *frames)

    def _compute(self, *given: Any) -> Any:
        return self._function(*given)


class CogroupedFrames(Frames):
    """Conversion of applyInPandas of cogroups."""

    _name, _sides = "cogrouped_udf", ("left_", "right_")

    def _batches(self, group: list[list[Part]]) -> Any:
        left, right = group
        return [part.batch for part in left], [part.batch for part in right]


class Aggregates(_Groups):
    """Conversion of pandas_udf as an aggregate of groups."""

    def _begin(self) -> ValueAnswers:
        self._functions = self._of["udfs"]
        given = [(*places, *named.values()) for _, places, named, _ in self._functions]
        self._places = sorted(set(chain.from_iterable(given)))
        return ValueAnswers(self._of["output_schema"], self._settings)

    def _convert(self, side: int, request: Request) -> JoinedSeries:
        return JoinedSeries(request.batch, request.rows, self._settings)

    def _arguments(self, *sides: tuple[JoinedSeries, int]) -> Any:
        rows, group = sides[0]
        return rows.series(group, self._places), rows.rows[group]

    def _compute(self, *given: Any) -> Any:
        series, _ = given
        return [([_called(function, series)], 1) for function in self._functions]


class Windows(Aggregates):
    """Conversion of pandas_udf over windows: whole partitions, or some rows around each row."""

    def _begin(self) -> ValueAnswers:
        self._bounds = self._of["window_bound_types"]
        return super()._begin()

    def _compute(self, *given: Any) -> Any:
        series, count = given
        return [
            ([_called(function, series)], count)
            if bounds == "unbounded"
            else (_called_on_windows(function, series), 1)
            for function, bounds in zip(self._functions, self._bounds, strict=True)
        ]


def _called(udf: Any, series: Mapping[int, Any]) -> Any:
    function, places, named, _ = udf
    return function(
        *[series[place] for place in places],
        **{name: series[place] for name, place in named.items()},
    )


def _called_on_windows(udf: Any, series: Mapping[int, Any]) -> list[Any]:
    """Call a function for each row, whose window begins and ends as two columns say."""
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
