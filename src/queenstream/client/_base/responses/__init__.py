"""Responses of the broker as typed values, one module for each group of routes."""
