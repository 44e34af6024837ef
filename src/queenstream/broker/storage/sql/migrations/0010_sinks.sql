-- compatible from: 7

-- A sink that Spark writes exactly once: the newest batch that is stored, and the run that owns the sink. One row for
-- each sink is kept for good, so a batch number that was used once is never taken for a new one.
create table queen.sinks (
    sink text collate "C" primary key,
    last_batch bigint not null default -1,          -- the highest batch that is stored
    owner_epoch bigint not null default 0,          -- rises with each run that takes the sink over
    owner_token text not null default '',           -- tells two runs of one epoch apart
    owner_name text not null default '',            -- process and host, for people
    temporary boolean not null default false,       -- of a run without a checkpoint: nothing comes back to it
    committed_at timestamptz not null default clock_timestamp()
);
insert into queen.sinks (sink, last_batch, committed_at)
select sink, max(batch_id), max(committed_at) from queen.sink_batches group by sink;
