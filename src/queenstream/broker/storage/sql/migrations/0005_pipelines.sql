-- What runs of pipelines tell of themselves. A pipeline has runs, one for each start; the newest one is the pipeline's.

create table queen.pipelines (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    created_at timestamptz not null
);

create table queen.pipeline_runs (
    pipeline_id integer not null references queen.pipelines (id) on delete cascade,
    instance text collate "C" not null,             -- an id of the run's own
    engine text not null,
    state text not null check (state in ('running', 'stopped', 'failed')),
    error text,
    checkpoint text,
    plan bytea,                                     -- JSON
    stats bytea not null,                           -- JSON: all figures of the last report
    started_at timestamptz not null,                -- the first report, and the last: by the broker's clock
    reported_at timestamptz not null,
    primary key (pipeline_id, instance)
);

-- The main figures every 15 seconds, as they were last in them.
create table queen.pipeline_stats (
    pipeline_id integer not null references queen.pipelines (id) on delete cascade,
    time timestamptz not null,
    messages double precision,
    errors double precision,
    late double precision,
    dead_letters double precision,
    dropped double precision,
    messages_per_second double precision,
    latency_p50_ms double precision,
    latency_p95_ms double precision,
    latency_p99_ms double precision,
    error_rate double precision,
    queue_depth double precision,
    watermark_lag_seconds double precision,
    state_rows double precision,
    state_bytes double precision,
    primary key (pipeline_id, time)
);
