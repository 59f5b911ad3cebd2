"""A message there and back, over rings or ZeroMQ: by calls that wait, and in event loops.

`under_way` messages are on their way at once: the driver sends the next one when one has come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import shmring
from benchmarks.payload import MESSAGE, unique_name
from benchmarks.processes import Gate

__all__ = ["Link", "drive", "echo", "link"]

_SLOTS = 1024
_LOOKS_AT_CLOCK = 64


class Link(NamedTuple):
    """What both sides must know."""

    there: str
    back: str
    means: str  # "shmring", "zeromq" or "aiozmq"
    loop: str  # "" (calls that wait), "asyncio" or "uvloop"
    under_way: int


Send = Callable[[bytes], Any]
Receive = Callable[[], Any]


@contextlib.contextmanager
def link(means: str, loop: str, under_way: int) -> Iterator[Link]:
    """A pair of rings, or of addresses."""
    with contextlib.ExitStack() as stack:
        if means != "shmring":
            import tempfile

            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shmring-bench-"))
            places = [f"ipc://{folder}/there", f"ipc://{folder}/back"]
        else:
            places = [f"{unique_name()}-{way}" for way in ("there", "back")]
            for place in places:
                ring = stack.enter_context(shmring.create(place, slots=_SLOTS))
                stack.callback(shmring.unlink, place)
                ring.subscribe("echo")
        yield Link(*places, means, loop, under_way)


@contextlib.contextmanager
def _open(link: Link, out: str, inp: str, binds: bool) -> Iterator[tuple[Send, Receive]]:
    """The calls of one side."""
    with contextlib.ExitStack() as stack:
        if link.means == "shmring":
            producer = stack.enter_context(stack.enter_context(shmring.attach(out)).producer())
            consumer = stack.enter_context(
                stack.enter_context(shmring.attach(inp)).consumer("echo")
            )
            yield (producer.put, consumer.get) if link.loop else (producer.push, consumer.pop)
            return
        import zmq
        import zmq.asyncio

        context = stack.enter_context(zmq.asyncio.Context() if link.loop else zmq.Context())
        sender = stack.enter_context(context.socket(zmq.PUSH))
        receiver = stack.enter_context(context.socket(zmq.PULL))
        sender.linger = 0
        for socket, address in ((sender, out), (receiver, inp)):
            (socket.bind if binds else socket.connect)(address)
        yield sender.send, receiver.recv


@contextlib.asynccontextmanager
async def _open_in_loop(
    link: Link, out: str, inp: str, binds: bool
) -> AsyncGenerator[tuple[Send, Receive], None]:
    """The calls of one side that runs in a loop."""
    if link.means != "aiozmq":
        with _open(link, out, inp, binds) as calls:
            yield calls
        return
    import aiozmq
    import zmq

    way = "bind" if binds else "connect"
    sender = await aiozmq.create_zmq_stream(zmq.PUSH, **{way: out})
    receiver = await aiozmq.create_zmq_stream(zmq.PULL, **{way: inp})

    async def send(data: bytes) -> None:
        sender.write([data])
        await sender.drain()

    async def receive() -> bytes:
        return (await receiver.read())[0]

    try:
        yield send, receive
    finally:
        for stream in (sender, receiver):
            stream.close()


def _run(loop: str, main: Callable[[], Awaitable[float]]) -> float:
    async def begin() -> float:
        return await main()

    if loop == "uvloop":
        import uvloop

        return uvloop.run(begin())
    return asyncio.run(begin())


def drive(gate: Gate, link: Link, seconds: float) -> float:
    """Send, and wait for what comes back; echoes a second."""
    if link.loop:
        return _run(link.loop, lambda: _drive_loop(gate, link, seconds))
    with _open(link, link.there, link.back, binds=True) as (send, receive):
        send(MESSAGE)
        receive()
        gate.wait()
        return _drive(send, receive, link.under_way, seconds)


def _drive(send: Send, receive: Receive, under_way: int, seconds: float) -> float:
    count = 0
    started = time.monotonic()
    for _ in range(under_way):
        send(MESSAGE)
    while (took := time.monotonic() - started) < seconds:
        for _ in range(_LOOKS_AT_CLOCK):
            receive()
            send(MESSAGE)
        count += _LOOKS_AT_CLOCK
    for _ in range(under_way):
        assert receive() == MESSAGE
    send(b"")
    return count / took


async def _drive_loop(gate: Gate, link: Link, seconds: float) -> float:
    async with _open_in_loop(link, link.there, link.back, binds=True) as (send, receive):
        await send(MESSAGE)
        await receive()
        gate.wait()
        count = 0
        started = time.monotonic()
        for _ in range(link.under_way):
            await send(MESSAGE)
        while (took := time.monotonic() - started) < seconds:
            for _ in range(_LOOKS_AT_CLOCK):
                await receive()
                await send(MESSAGE)
            count += _LOOKS_AT_CLOCK
        for _ in range(link.under_way):
            assert await receive() == MESSAGE
        await send(b"")
        return count / took


def echo(gate: Gate, link: Link) -> float:
    """Send every message back, up to the empty one."""
    if link.loop:
        return _run(link.loop, lambda: _echo_loop(gate, link))
    with _open(link, link.back, link.there, binds=False) as (send, receive):
        send(receive())
        gate.wait()
        while data := receive():
            send(data)
        return 0.0


async def _echo_loop(gate: Gate, link: Link) -> float:
    async with _open_in_loop(link, link.back, link.there, binds=False) as (send, receive):
        await send(await receive())
        gate.wait()
        while data := await receive():
            await send(data)
        return 0.0
