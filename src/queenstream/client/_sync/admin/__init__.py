# Generated from _async/admin/__init__.py by `python tools/async_to_sync.py`; do not edit.
"""The administration API of the client, one module for each group of routes."""
