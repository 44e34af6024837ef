"""How the rows of a batch reach the sinks: through the tasks, never through the driver.

A batch is delivered in two steps. First the tasks that compute it *stage* its rows: each task writes them to
a file of the checkpoint, or into a staging table, and gives the driver a receipt that says how many there are
and where. The driver stores the receipts: from then on the batch is *prepared*, and whatever happens, exactly
these rows will be delivered. Then tasks *commit*: they read the staged rows and write them to the sink under
the batch's name, which exactly-once sinks recognize when it comes again.

Here belongs what does that: ``storage`` (where files are kept), ``pieces`` (how Spark carries them where
tasks reach no common folder), ``staged`` (the format of staged rows), ``stage`` (the task that stages),
``commit`` (the task that writes), ``two_phase`` (sinks in whose own storage rows are staged: ``queues``,
``files``, ``tables``), ``frames`` (rows that a writer of Spark's stages), ``buckets`` (which rows a task
writes), ``owner`` (which run may write), ``prepared`` (what the driver stores), ``delivery`` (the driver's
part), ``times`` (how long tasks compute and stage) and ``descriptions`` (what Spark's pages call the jobs).
"""
