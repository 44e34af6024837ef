"""Several stages at once: click by click enriched, then aggregated, each stage at its own pace."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from queenstream import AsyncQueen, AsyncWindow

COUNTRIES = {"ann": "DE", "bob": "IT", "cem": "DE"}


async def look_up(click: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)  # stands for a call to another service
    return {**click, "country": COUNTRIES[click["user"]]}


async def main() -> None:
    async with AsyncQueen() as queen:
        for name in ("stages-raw", "stages-enriched"):
            await queen.stream(name).delete()
        for name in ("stages-clicks", "stages-rich-clicks", "stages-results"):
            await queen.queue(name).delete()
            await queen.queue(name).create()
        raw = queen.stream("stages-raw", "analytics").sources(["stages-clicks"])
        await raw.tumbling_time(10).grace_period(0).event_time("data.at").idle_timeout(1).define()
        enriched = queen.stream("stages-enriched", "analytics").sources(["stages-rich-clicks"])
        # No idle timeout: nothing closes a minute but a click of the next one.
        await enriched.tumbling_time(60).grace_period(0).event_time("data.at").define()

        async def enrich(window: AsyncWindow[Any]) -> None:
            rich = [await look_up(message.data) for message in window.all_messages]
            # One push for all, with the clicks' own ids: should the window come again, none is stored twice.
            ids = [message.transaction_id for message in window.all_messages]
            await queen.queue("stages-rich-clicks").push(rich, transaction_ids=ids)

        async def count(window: AsyncWindow[Any]) -> None:
            countries = Counter(message.data["country"] for message in window.all_messages)
            result = {"minute": window.start, "clicks": countries}
            await queen.queue("stages-results").push(result, transaction_id=window.id)

        times = [("ann", "00:01"), ("bob", "00:03"), ("cem", "00:12"), ("bob", "00:25"), ("ann", "01:00")]
        clicks = [{"user": user, "at": f"2026-01-31T12:{time}Z"} for user, time in times]
        await queen.queue("stages-clicks").push(clicks)
        async with asyncio.TaskGroup() as stages:
            stages.create_task(queen.consumer("stages-raw", "enricher").process(enrich, limit=4))
            stages.create_task(queen.consumer("stages-enriched", "counter").process(count, limit=1))

        for message in await queen.queue("stages-results").batch(10).auto_ack().pop():
            print(message.data["minute"], message.data["clicks"])


if __name__ == "__main__":
    asyncio.run(main())
