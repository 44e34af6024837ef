"""A whole application: chats are translated, and each chat's windows hold both languages."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from queenstream import AsyncMessage, AsyncQueen, AsyncWindow

WORDS = {"Hello": "Hola", "world": "mundo", "tea": "té", "please": "por favor"}
CHATS = {"chat-1": ["Hello world", "tea please"], "chat-2": ["Hello"]}


async def translate(text: str) -> str:
    await asyncio.sleep(0)  # stands for a call to another service
    return " ".join(WORDS[word] for word in text.split())


async def main() -> None:
    async with AsyncQueen() as queen:
        await queen.stream("translate-complete").delete()
        for name in ("translate-messages", "translate-translations"):
            await queen.queue(name).delete()
            await queen.queue(name).namespace("chat").create()
        sources = ["translate-messages", "translate-translations"]
        stream = queen.stream("translate-complete", "chat").sources(sources).partitioned()
        await stream.tumbling_time(1).grace_period(0).define()

        async def produce() -> None:
            for chat, texts in CHATS.items():
                for text in texts:
                    lane = queen.queue("translate-messages").partition(chat)
                    await lane.push({"user": "ann", "text": text})

        async def answer(message: AsyncMessage[Any]) -> None:
            translated = {
                "original": message.data["text"],
                "translated": await translate(message.data["text"]),
            }
            # The translation is stored and the message acknowledged in one transaction: both or neither. It
            # goes to the partition of the same name, and so into the same window or the one after it.
            await (
                queen.transaction()
                .ack(message)
                .queue("translate-translations")
                .partition(message.partition)
                .push([translated])
                .commit()
            )

        counts: Counter[str] = Counter()
        complete = asyncio.Event()

        async def collect(window: AsyncWindow[Any]) -> None:
            for message in window.all_messages:
                counts[f"{window.key} {message.queue.removeprefix('translate-')}"] += 1
                if "translated" in message.data:
                    counts[message.data["translated"]] += 1
            if counts.total() == 9:  # three messages, three translations, each translation by its text
                complete.set()

        async with asyncio.TaskGroup() as services:
            services.create_task(produce())
            translator = queen.queue("translate-messages").group("translator").auto_ack(False).each()
            services.create_task(translator.consume(answer, stop=complete))
            aggregator = queen.consumer("translate-complete", "aggregator")
            services.create_task(aggregator.process(collect, stop=complete))

    for what, count in sorted(counts.items()):
        print(count, what)


if __name__ == "__main__":
    asyncio.run(main())
