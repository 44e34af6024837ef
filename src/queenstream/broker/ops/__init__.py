"""Operating a broker: background tasks, retention, metrics, live figures, the audit log, search."""
