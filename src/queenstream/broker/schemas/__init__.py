"""Types of HTTP requests and responses, one module for each group of routes."""
