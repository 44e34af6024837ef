# Generated from _async/__init__.py by `python tools/async_to_sync.py`: change that file, not this one.
"""The client for asyncio, written by hand. ``_sync`` is made from it by ``tools/async_to_sync.py``."""
