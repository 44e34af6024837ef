"""A real Kafka."""

from tests.servers.kafka import kafka

__all__ = ["kafka"]
