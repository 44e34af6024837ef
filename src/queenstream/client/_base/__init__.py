"""What needs no I/O: both clients, the async one and the sync one, stand on it."""
