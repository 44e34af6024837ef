"""The HTTP server: connections, routing, limits, static files, the response cache, OpenAPI."""
