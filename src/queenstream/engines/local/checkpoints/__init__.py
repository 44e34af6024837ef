"""Checkpoints of the local engine, in a folder (SQLite) or in PostgreSQL."""
