"""Expressions over records: their parser, their types, and how they are computed."""
