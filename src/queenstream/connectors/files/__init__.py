"""Files and folders: NDJSON, CSV, Parquet, text and ORC."""
