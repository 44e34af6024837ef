"""Tables of PostgreSQL: connection, catalog, reader, writer and look-up."""
