"""How fast are 300-byte messages from Python, here and by other means?"""

from __future__ import annotations

from benchmarks import native
from benchmarks.harness import Question, Row, Settings, Target
from benchmarks.oneway import Messages, RoundTrip
from benchmarks.payload import BATCH

RATE = "M msg/s"
ZEROMQ = "ZeroMQ ipc, one at a time"
ZEROMQ_BATCHED = f"ZeroMQ ipc, frames of {BATCH} messages"


def question(settings: Settings) -> Question:
    """Two processes; one at a time, in batches, and to and fro."""
    del settings
    rows = [
        Row(ZEROMQ, RATE, Messages("zeromq", guess=5e5, pinned=False)),
        Row(
            "SP/SC, one at a time",
            RATE,
            Messages("ring", guess=5e6, single=True),
            (Target(8.0, ZEROMQ),),
        ),
        Row("MP/MC, one at a time", RATE, Messages("ring", guess=5e6), (Target(8.0, ZEROMQ),)),
        Row("Unix socket, one at a time", RATE, Messages("unix_socket")),
        Row("iceoryx2, one at a time", RATE, Messages("iceoryx", guess=2e5)),
        Row("multiprocessing.Queue", RATE, Messages("mp_queue", guess=1e5, pinned=False)),
        Row(
            f"SP/SC, batches of {BATCH}",
            RATE,
            Messages("ring", "_batches", guess=1e7, single=True),
            (Target(20.0, ZEROMQ),),
            compare=(ZEROMQ_BATCHED,),
        ),
        Row(
            f"MP/MC, batches of {BATCH}",
            RATE,
            Messages("ring", "_batches", guess=1e7),
            (Target(20.0, ZEROMQ),),
            compare=(ZEROMQ_BATCHED,),
        ),
        Row(
            ZEROMQ_BATCHED,
            RATE,
            Messages("zeromq", "_batches", guess=5e6, pinned=False),
        ),
        Row(
            f"Unix socket, {BATCH} messages a length",
            RATE,
            Messages("unix_socket", "_batches", guess=5e6),
        ),
        Row(
            f"iceoryx2, slices of {BATCH} messages",
            RATE,
            Messages("iceoryx", "_batches", guess=5e6),
        ),
        Row(
            "round trip, spinning",
            "us",
            RoundTrip("ring", single=True, wait="spin"),
            (Target(2.0),),
            lower_is_better=True,
        ),
        Row("round trip, default waiting", "us", RoundTrip("ring"), lower_is_better=True),
        Row(
            "round trip, Unix socket",
            "us",
            RoundTrip("unix_socket"),
            lower_is_better=True,
        ),
        Row(
            "round trip, ZeroMQ ipc",
            "us",
            RoundTrip("zeromq", pinned=False),
            lower_is_better=True,
        ),
    ]
    title = "How fast are 300-byte messages from Python?"
    return Question("messages", title, rows, line=native.line)
