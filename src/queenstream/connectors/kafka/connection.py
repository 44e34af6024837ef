"""What reading and writing Kafka share: a client's settings, a first look at the servers, and its errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from queenstream.errors import BrokerUnreachable, ConfigError, QueenstreamError, RunFailed
from queenstream.pipeline.endpoints import Kafka

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import ClusterMetadata

log = logging.getLogger("queenstream.kafka")

_LOOK_SECONDS = 5.0  # for the first answer of the servers
_AGAIN_MS = 1_000  # how soon a server that was away is tried again, at the latest
_SAY_SECONDS = 10.0
_CRITICAL = 2
_NAMED = {"bootstrap.servers", "group.id", "group.instance.id"}  # a static member does not outlive an outage


def settings_of(endpoint: Kafka, ours: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The client's settings: ours, over them the user's, over them what we depend on.

    >>> settings_of(Kafka("t", settings={"linger.ms": "1"}), {"linger.ms": 5}, {})["linger.ms"]
    '1'
    """
    taken = sorted(set(endpoint.settings) & ({*fixed} | _NAMED))
    if taken:
        raise ConfigError(
            f"{endpoint.title}: {', '.join(taken)} cannot be set, as the connector depends on it; leave it "
            "out (servers= and group= are options of Kafka)"
        )
    common = {
        "bootstrap.servers": endpoint.servers,
        "reconnect.backoff.max.ms": _AGAIN_MS,
        "log_level": _CRITICAL,  # the rest comes to error_cb
    }
    return {**common, **ours, **endpoint.settings, **fixed}


def refused(endpoint: Kafka, error: KafkaException) -> ConfigError:
    """What to say of settings that the library does not take. Their values may be secret."""
    said = error_of(error).str()
    for value in endpoint.settings.values():
        said = said.replace(str(value), "…") if value else said
    return ConfigError(f"{endpoint.title}: settings that the client library does not take: {said}")


def look(client: Any, endpoint: Kafka, topic: str | None = None) -> ClusterMetadata:
    """What the servers say of their topics. That none answers is an error at once, not one to wait for."""
    try:
        found: ClusterMetadata = client.list_topics(topic, timeout=_LOOK_SECONDS)
    except KafkaException as error:
        raise BrokerUnreachable(
            f"no Kafka server answers at {endpoint.servers}: {error_of(error).str()}; start it, or correct "
            "servers= and settings="
        ) from None
    return found


def no_topic(endpoint: Kafka, name: str) -> ConfigError:
    """What to say of a topic that is not there."""
    return ConfigError(f"there is no topic {name!r} at {endpoint.servers}; create it, or correct its name")


def failed(endpoint: Kafka, error: KafkaError) -> QueenstreamError:
    """What to say of an error that does not pass."""
    return RunFailed(f"{endpoint.title}: {error.str()} ({error.name()}); mend that and start again")


def error_of(error: KafkaException) -> KafkaError:
    """What an exception of the library is about."""
    found: KafkaError = error.args[0]
    return found


class Teller:
    """The library's word on how it goes (``error_cb``). Most of it passes, and is said again and again."""

    def __init__(self) -> None:
        self._said: dict[int, float] = {}

    def __call__(self, error: KafkaError) -> None:
        """Say it, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._said.get(error.code(), -_SAY_SECONDS) >= _SAY_SECONDS:
            self._said[error.code()] = now
            log.warning("%s", error.str())
