"""What a stateful step sees of its key's state. The engines bring it; here is only its shape.

def sessions(key, event, state):
    started = state.get("started")
    if event["type"] == "start":
        state.set("started", event["at"])
        state.set_timer("forgotten", after="30m")
    elif started is not None:
        state.clear()
        return {"user": key, "from": started, "to": event["at"]}
    return None

def forgotten(key, timer, state):
    state.clear()
    return {"user": key, "abandoned": True}

pipeline.key_by("user").stateful(sessions, on_timer=forgotten, ttl="1h")
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol


class State(Protocol):
    """One key's values and timers. What is set is kept with the checkpoint, and read back after a restart.

    Values are anything that JSON can write, and times. A key that was not touched for the step's ``ttl``
    (in event time) is forgotten, timers included.
    """

    @property
    def time(self) -> datetime:
        """The event time of the record, or what the timer was set to."""
        ...

    def get(self, name: str, default: Any = None) -> Any:
        """The value of that name."""
        ...

    def set(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        ...

    def delete(self, name: str) -> None:
        """Forget one value; nothing happens if there is none."""
        ...

    def clear(self) -> None:
        """Forget all values and timers of the key."""
        ...

    def set_timer(
        self, name: str, *, at: datetime | None = None, after: str | float | timedelta | None = None
    ) -> None:
        """Call ``on_timer`` once the watermark is past ``at``, or past ``after`` from ``time``.

        A timer of that name that is set already is moved.
        """
        ...

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; nothing happens if there is none."""
        ...

    def emit(self, record: Any) -> None:
        """Give a record besides the one that is returned, before it."""
        ...
