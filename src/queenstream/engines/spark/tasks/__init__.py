"""What runs in the tasks of a query: steps, stages and the rows between them."""
