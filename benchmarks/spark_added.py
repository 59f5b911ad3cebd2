"""What does a function add to a query? Parquet, a mapInArrow that changes nothing, two totals."""

from __future__ import annotations

from benchmarks.harness import Question, Row, Settings, Target
from benchmarks.payload import MESSAGE_BYTES
from benchmarks.spark_session import payload
from benchmarks.spark_ways import (
    BEST,
    COMET,
    DEFAULT,
    DIRECT,
    SAIL,
    Bench,
    Contestant,
    Effort,
    Input,
)

__all__ = ["question"]

LEAST_ROUNDS = 7

WIDE = Input(
    "rows of 300 bytes",
    MESSAGE_BYTES,
    ("id", payload(MESSAGE_BYTES - 8)),
    ("count(*)", "sum(id)", "sum(crc32(payload))"),
)
NUMBERS = Input(
    "ten numbers",
    80,
    ("id", *(f"{k} * id AS n{k}" for k in range(1, 10))),
    ("count(*)", "sum(id)", *(f"sum(n{k})" for k in range(1, 10))),
)


def _added(without: float, mapped: float, size: float) -> float:
    del size
    return mapped - without


def _rows(bench: Bench, data: Input, totals: tuple[str, ...], target: float) -> list[Row]:
    """Totals of two columns: what follows a function seldom takes all."""
    best = f"{data.name}: Spark's own function"
    ours = f"{data.name}: a sidecar straight from the JVM"
    ways = {
        best: BEST,
        f"{best}, at Spark's default maxBytesPerBatch": DEFAULT,
        ours: DIRECT,
        f"{data.name}: Comet, which keeps columns": COMET,
        f"{data.name}: Sail, which runs functions in its own process": SAIL,
    }
    rows = [
        Row(
            name,
            "s",
            Contestant(bench, data, chosen, "identity", totals, _added),
            (Target(target),) if name == ours else (),
            lower_is_better=True,
            compare=(best,) if name == ours else (),
        )
        for name, chosen in ways.items()
    ]
    copying = Contestant(bench, data, DIRECT, "copying", totals, _added)
    name = f"{ours}, a function that copies"
    return [*rows, Row(name, "s", copying, lower_is_better=True, compare=(best,))]


def _columns(bench: Bench, data: Input, totals: tuple[str, ...]) -> Row:
    """What Spark takes to read the columns of which a query without a function wants only two."""
    every = (f"sum({' + '.join(['id', *(f'n{k}' for k in range(1, 10))])})",)
    read = Contestant(bench, data, DIRECT[:1], None, totals, _added, every)
    return Row(
        f"{data.name}: to read and add up all columns, without a function",
        "s",
        read,
        lower_is_better=True,
    )


def question(settings: Settings) -> Question:
    """The same query with a function and without it, in several engines."""
    effort = Effort(200_000, 1, 1, 1) if settings.quick else Effort(2_000_000)
    bench = Bench(effort, WIDE, NUMBERS)
    return Question(
        "spark-added",
        "What does a function add to a query over parquet? (two million rows, local[2])",
        [
            *_rows(bench, WIDE, ("sum(id)", "sum(length(payload))"), 0.06),
            *_rows(bench, NUMBERS, ("sum(id)", "sum(n9)"), 0.10),
            _columns(bench, NUMBERS, ("sum(id)", "sum(n9)")),
        ],
        setup=bench.open,
        least_rounds=LEAST_ROUNDS,
    )
