"""How a query reads the sources of a plan."""
