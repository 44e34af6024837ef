"""``StreamProcessor``: filters, maps, windows and joins events inside one process, without a server."""
