"""Tables of PostgreSQL as sinks: tasks COPY rows into a staging table, one transaction moves them.

``staging_table`` is what tasks need (ADBC), ``sink`` is the driver's part (asyncpg), and ``readback`` brings
rows that the table refuses into files of the checkpoint, from where the sink's writer finds the bad ones.
"""
