"""A partitioned stream: a window for each partition name, over all sources. Here, for each chat room."""

from __future__ import annotations

import asyncio
from typing import Any

from queenstream import AsyncQueen, AsyncWindow

SOURCES = ("rooms-messages", "rooms-reactions", "rooms-edits")


def summary(window: AsyncWindow[Any]) -> str:
    users = sorted(window.group_by("data.user"))
    texts = [message.data["text"] for message in window.all_messages if "text" in message.data]
    # filter() narrows window.messages, the working copy; reset() takes all of them back.
    reactions = window.filter(lambda message: "emoji" in message.data).messages
    edits = window.reset().filter(lambda message: "edited_text" in message.data).messages
    return f"{window.key}: {texts}, reactions {len(reactions)}, edits {len(edits)}, by {users}"


async def main() -> None:
    async with AsyncQueen() as queen:
        await queen.stream("rooms-activity").delete()
        for name in SOURCES:
            await queen.queue(name).delete()
            await queen.queue(name).namespace("chat").create()
        stream = queen.stream("rooms-activity", "chat").sources(SOURCES).partitioned()
        await stream.tumbling_time(2).grace_period(0.5).define()

        # The same partition name in several queues is one key: what belongs to a room comes in one window.
        await (
            queen.transaction()
            .queue("rooms-messages").partition("room-42").push([{"user": "ann", "text": "Hello!"}])
            .queue("rooms-reactions").partition("room-42").push([{"user": "bob", "emoji": "+1"}])
            .queue("rooms-edits").partition("room-42").push([{"user": "ann", "edited_text": "Hello all!"}])
            .queue("rooms-messages").partition("room-7").push([{"user": "cem", "text": "Anybody here?"}])
            .commit()
        )  # fmt: skip

        # A window is acknowledged when the loop asks for the next one.
        windows = queen.consumer("rooms-activity", "summary").windows(limit=2)
        found = [summary(window) async for window in windows]
        print("\n".join(sorted(found)))  # keys are independent, and come in any order


if __name__ == "__main__":
    asyncio.run(main())
