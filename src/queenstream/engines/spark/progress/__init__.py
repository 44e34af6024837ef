"""What Spark tells of the batches of a query: its progress, as a listener gets it."""
