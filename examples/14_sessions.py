"""Sessions: windows that last as long as a user is active, and end after a pause."""

from __future__ import annotations

import asyncio
from typing import Any

from queenstream import AsyncQueen, AsyncWindow


async def main() -> None:
    sessions: list[str] = []

    async def note(window: AsyncWindow[Any]) -> None:
        pages = [message.data["page"] for message in window.all_messages]
        # From the first message to the last one plus the gap.
        minutes = (window.end - window.start).total_seconds() / 60 - 5
        sessions.append(
            f"{window.key} at {window.start:%H:%M}, active for {minutes:g} min: {' '.join(pages)}"
        )

    async with AsyncQueen() as queen:
        await queen.stream("sessions-visits").delete()
        views = queen.queue("sessions-views")
        await views.delete()
        await views.create()
        await (
            queen.stream("sessions-visits", "analytics")
            .sources(["sessions-views"])
            .partitioned()  # for each user
            .session_gap("5m")  # a pause of five minutes ends it
            .grace_period(
                "30m"
            )  # users are not in step: what one does may be stored after later times of another
            .event_time("data.at")
            .idle_timeout(2)
            .define()
        )

        # Ann comes twice. Her third view is only two minutes after the second, and so in the same session.
        visits = {
            "ann": [("12:00", "/"), ("12:04", "/tea"), ("12:06", "/cart"), ("12:30", "/")],
            "bob": [("12:01", "/cups")],
        }
        for user, pages in visits.items():
            lane = views.partition(user)
            await lane.push([{"page": page, "at": f"2026-01-31T{time}:00Z"} for time, page in pages])

        await queen.consumer("sessions-visits", "visits").process(note, concurrency=2, limit=3)
        print("\n".join(sorted(sessions)))


if __name__ == "__main__":
    asyncio.run(main())
