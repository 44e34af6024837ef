"""Spark sessions: settings, Java, jars, worker processes and executors."""
