"""PostgreSQL: connections, the schema, named SQL, notifications, and what its errors mean."""
