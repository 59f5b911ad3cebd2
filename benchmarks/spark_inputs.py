"""What does a function cost with other rows, and what if it does something? Parquet, local[2]."""

from __future__ import annotations

from benchmarks.harness import Question, Row, Settings
from benchmarks.spark_added import NUMBERS, WIDE
from benchmarks.spark_ways import BEST, DEFAULT, DIRECT, Bench, Contestant, Effort, Input

__all__ = ["question"]

LEAST_ROUNDS = 3
TEXTS, TEXT_BYTES = 5, 20
LONG = 8  # bytes

STRINGS = Input(
    "strings",
    LONG + TEXTS * TEXT_BYTES,
    ("id", *(f"lpad({k} * id, {TEXT_BYTES}, 'x') AS s{k}" for k in range(TEXTS))),
    ("count(*)", "sum(id)", *(f"sum(crc32(s{k}))" for k in range(TEXTS))),
)
NESTED = Input(
    "nested",
    LONG + (LONG + TEXT_BYTES) + 4 * LONG,
    (
        "id",
        f"named_struct('number', 2 * id, 'text', lpad(id, {TEXT_BYTES}, 'x')) AS pair",
        "array(id, 2 * id, 3 * id, 4 * id) AS list",
    ),
    (
        *("count(*)", "sum(id)", "sum(pair.number)", "sum(crc32(pair.text))"),
        "sum(aggregate(list, 0L, (sum, each) -> sum + each))",
    ),
)
MANY = Input(
    "50 columns",
    50 * LONG,
    tuple(f"{k} * id AS n{k}" for k in range(50)),
    ("count(*)", *(f"sum(n{k})" for k in range(50))),
)


def _rate(without: float, mapped: float, size: float) -> float:
    del without
    return size / mapped


def _rows(bench: Bench, data: Input, function: str = "identity") -> list[Row]:
    name = data.name if function == "identity" else f"{data.name}, {function} function"
    best = f"{name}: Spark's own"
    ways = {
        best: BEST,
        f"{best}, at Spark's default maxBytesPerBatch": DEFAULT,
        f"{name}: a sidecar straight from the JVM": DIRECT,
    }
    return [
        Row(
            row,
            "GB/s",
            Contestant(bench, data, chosen, function, None, _rate),
            compare=() if row == best else (best,),
        )
        for row, chosen in ways.items()
    ]


def question(settings: Settings) -> Question:
    """Columns of several kinds through a function that does nothing, and numbers through others."""
    full = Effort(1_000_000, warm_ups=6, tries=2, pairs=2)
    effort = Effort(100_000, 1, 1, 1) if settings.quick else full
    bench = Bench(effort, STRINGS, NESTED, MANY, NUMBERS, WIDE)
    return Question(
        "spark-inputs",
        "What does a function cost with other rows? (parquet, identity but where said, local[2])",
        [
            *(row for data in (STRINGS, NESTED, MANY) for row in _rows(bench, data)),
            *_rows(bench, WIDE, "copying"),
            *_rows(bench, NUMBERS, "copying"),
            *_rows(bench, NUMBERS, "cheap"),
            *_rows(bench, NUMBERS, "heavy"),
        ],
        setup=bench.open,
        least_rounds=LEAST_ROUNDS,
    )
