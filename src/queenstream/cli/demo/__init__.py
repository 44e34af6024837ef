"""``queen up --demo``: a shop's traffic, and a pipeline that reads it."""
