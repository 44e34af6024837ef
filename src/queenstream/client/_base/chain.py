"""What a chain like ``queen.queue("orders").group("billing").batch(100)`` has said so far."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from queenstream.client._base.http import moment, path_of, query_of
from queenstream.core import durations
from queenstream.errors import ConfigError

Duration = str | float
SubscriptionMode = Literal["all", "new"]
POLL_SECONDS = 30.0  # how long one long poll of a consumer waits


class QueueOptions(Struct, rename="camel", omit_defaults=True):
    """A queue's options; those left out have the broker's defaults."""

    lease_time: int | UnsetType = UNSET
    retry_limit: int | UnsetType = UNSET
    retry_delay: int | UnsetType = UNSET
    ttl: int | UnsetType = UNSET
    max_size: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    delayed_processing: int | UnsetType = UNSET
    window_buffer: int | UnsetType = UNSET
    retention_enabled: bool | UnsetType = UNSET
    retention_seconds: int | UnsetType = UNSET
    completed_retention_seconds: int | UnsetType = UNSET
    max_wait_time_seconds: int | UnsetType = UNSET
    encryption_enabled: bool | UnsetType = UNSET
    dead_letter_queue: bool | UnsetType = UNSET
    dlq_after_max_retries: bool | UnsetType = UNSET


class ConfigureBody(Struct, omit_defaults=True):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: QueueOptions | None = None


@dataclass(frozen=True)
class Settings:
    """Frozen: every word of a chain makes a new one, so that a chain can be kept and taken up again."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    partition: str | None = None
    options: QueueOptions | None = None
    group: str | None = None
    batch: int = 1
    partitions: int = 1
    wait_seconds: float | None = None  # None: pop does not wait, a consumer does
    auto_ack: bool | None = None  # None: pop leaves it to the caller, a consumer acknowledges
    mode: SubscriptionMode | None = None
    start: str | None = None
    concurrency: int = 1
    limit: int | None = None
    idle_seconds: float | None = None

    @property
    def name(self) -> str:
        """The queue's name, where one is needed."""
        if self.queue is None:
            raise ConfigError('this needs a queue; write queen.queue("name")')
        return self.queue

    def pop_path(self, *, batch: int, wait_seconds: float, auto_ack: bool) -> str:
        """The path of a pop with its query."""
        path, always = self._pop_target
        query = f"?batch={batch}&brief=true"
        if wait_seconds > 0:
            query += f"&wait=true&timeout={max(1, int(wait_seconds * 1000))}"
        if auto_ack:
            query += "&autoAck=true"
        return path + query + always

    @cached_property
    def _pop_target(self) -> tuple[str, str]:
        """What is the same in every pop: the path, and the end of the query."""
        if self.queue is not None:
            parts = ["api", "v1", "pop", "queue", self.queue]
            path = path_of(*parts, *(["partition", self.partition] if self.partition is not None else []))
        elif self.partition is not None:
            raise ConfigError('a partition belongs to a queue; write queen.queue("name").partition(…)')
        elif self.namespace is None and self.task is None:
            raise ConfigError("say what to pop from: a queue's name, .namespace(…) or .task(…)")
        else:
            path = path_of("api", "v1", "pop")
        always = query_of(
            {
                "consumerGroup": self.group,
                "subscriptionMode": self.mode,
                "subscriptionFrom": self.start,
                "partitions": self.partitions if self.partitions > 1 else None,
                "namespace": self.namespace if self.queue is None else None,
                "task": self.task if self.queue is None else None,
            }
        )
        return path, always.replace("?", "&", 1)


def at_least(what: str, value: object, least: int = 1) -> int:
    """A number that is no smaller."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{what} is {value!r}; give a whole number of at least {least}")
    return value


def seconds(what: str, value: Duration) -> float:
    """A duration in seconds; the message names what it is for."""
    try:
        return durations.seconds(value)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{what}: {error}") from None


def start_of(when: datetime | str) -> str:
    """Where a group starts: "now", or a time."""
    return moment(when)
