"""The administration API of the client, one module for each group of routes."""
