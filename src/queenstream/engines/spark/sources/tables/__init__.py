"""Tables as Python data sources: the driver plans ranges of rows, the tasks read them.

A batch is a range between two offsets, each the position of a row, so that it can be read again. The rows
are those of a source that ends (``sources.FED``): each says whether it is a record, one that did not fit the
schema, or the end.
"""
