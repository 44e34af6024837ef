"""Queues and streams of a broker: connection, reader, writer and look-up."""
