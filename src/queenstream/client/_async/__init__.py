"""The client for asyncio, written by hand. ``_sync`` is made from it by ``tools/async_to_sync.py``."""
