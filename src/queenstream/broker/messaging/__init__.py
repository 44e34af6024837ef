"""Push, pop and acknowledge: batches, the catalog of queues, sequence numbers, encryption."""
