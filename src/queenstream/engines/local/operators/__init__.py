"""The operators: one module for each kind of node, plain Python over lists of records."""
