"""How far event time has come in a query: what Spark's watermark needs beyond what Spark does itself."""
