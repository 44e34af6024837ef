"""Topics of Kafka: connection, reader and writer."""
