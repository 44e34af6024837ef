# Generated from _async/__init__.py by `python tools/async_to_sync.py`; do not edit.
"""The client for asyncio, written by hand. ``_sync`` is made from it by ``tools/async_to_sync.py``."""
