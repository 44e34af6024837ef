"""Tables of Cassandra: connection, types, reader, writer and look-up."""
