"""A consumer as a program of its own, for tests that send it signals.

It says on its output what it does, one word a line; its handler ends with a line on its input.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from queenstream import AsyncMessage, AsyncQueen, AsyncWindow, Message, Queen, Window


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def consume(address: str) -> None:
    def handle(message: Message[Any]) -> None:
        say("begin", message.data)
        sys.stdin.readline()
        say("end", message.data)

    with Queen(address) as queen:
        result = queen.queue("q").group("g").batch(10).concurrency(2).each().consume(handle)
    say("handled", result.handled, "failed", result.failed)


def process(address: str) -> None:
    def handle(window: Window[Any]) -> None:
        say("begin", window.key)
        sys.stdin.readline()
        say("end", window.key)

    with Queen(address) as queen:
        result = queen.consumer("s", "g").process(handle, concurrency=2)
    say("handled", result.handled, "failed", result.failed)


async def consume_async(address: str) -> None:
    async def handle(message: AsyncMessage[Any]) -> None:
        say("begin", message.data)
        await asyncio.to_thread(sys.stdin.readline)
        say("end", message.data)

    async with AsyncQueen(address) as queen:
        result = await queen.queue("q").group("g").batch(10).concurrency(2).each().consume(handle)
    say("handled", result.handled, "failed", result.failed)


async def process_async(address: str) -> None:
    async def handle(window: AsyncWindow[Any]) -> None:
        say("begin", window.key)
        await asyncio.to_thread(sys.stdin.readline)
        say("end", window.key)

    async with AsyncQueen(address) as queen:
        result = await queen.consumer("s", "g").process(handle, concurrency=2)
    say("handled", result.handled, "failed", result.failed)


if __name__ == "__main__":
    what, where = sys.argv[1:]
    if what == "consume":
        consume(where)
    elif what == "process":
        process(where)
    elif what == "consume_async":
        asyncio.run(consume_async(where))
    else:
        asyncio.run(process_async(where))
