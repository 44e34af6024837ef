-- Spark writes into queues exactly once: tasks stage what they have, the driver stores it together with the batch's number.

-- What tasks have staged, many messages in a row, laid out as queen.push takes them. Not logged: after a crash it is
-- empty, the driver finds too little, and Spark runs the batch again.
create unlogged table queen.staged (
    sink text collate "C" not null,
    batch_id bigint not null,
    attempt text collate "C" not null,              -- one run of one task
    chunk integer not null,                         -- 0, 1, 2 … of the attempt
    partitions text[] not null,                     -- names, each once; the messages stand partition by partition
    counts integer[] not null,                      -- how many messages each has
    transactions text[] not null,
    traces text[],
    payloads bytea not null,                        -- one behind the other
    ends integer[] not null,                        -- where each ends, after a 0
    staged_at timestamptz not null default clock_timestamp(),
    primary key (attempt, chunk)
);
create index staged_sink on queen.staged (sink, batch_id);
-- Short-lived: to compress it would cost more than it saves.
alter table queen.staged alter payloads set storage external;
alter table queen.staged alter transactions set storage external;

-- The batches that are stored. A batch that comes again changes nothing.
create table queen.sink_batches (
    sink text collate "C" not null,
    batch_id bigint not null,
    messages bigint not null default 0,
    committed_at timestamptz not null default clock_timestamp(),
    primary key (sink, batch_id)
);
