-- The broker's tables. Functions are in ../functions and are replaced as a set.
--
-- Messages are append-only. The rows that change often (cursors, deliveries) are small and stand apart.
-- Inside a partition, ids rise in the order of commits: they are drawn under a lock held to the commit.

create sequence queen.batches as bigint;

create table queen.queues (
    id integer generated always as identity primary key,
    version integer not null default 1,             -- rises with every configure; a broker's cache checks it
    name text collate "C" not null unique,
    namespace text collate "C" not null default '',
    task text collate "C" not null default '',
    lease_time_seconds integer not null default 300,
    retry_limit integer not null default 3,
    retry_delay_ms integer not null default 1000,
    ttl_seconds integer not null default 3600,
    max_size bigint not null default 0,
    priority integer not null default 0,
    delayed_processing_seconds integer not null default 0,
    window_buffer_seconds integer not null default 0,
    retention_enabled boolean not null default false,
    retention_seconds integer not null default 0,
    completed_retention_seconds integer not null default 0,
    max_wait_time_seconds integer not null default 0,
    encryption_enabled boolean not null default false,
    dead_letter_queue boolean not null default false,
    dlq_after_max_retries boolean not null default false,
    -- how old a message may be and still be delivered; null: any age
    horizon_seconds integer generated always as (
        least(nullif(ttl_seconds, 0), case when retention_enabled then nullif(retention_seconds, 0) end)
    ) stored,
    created_at timestamptz not null default clock_timestamp()
);
create index queues_namespace on queen.queues (namespace, task);

create table queen.partitions (
    id bigint generated always as identity primary key,
    queue_id integer not null references queen.queues (id) on delete cascade,
    name text collate "C" not null,
    base_seq bigint not null default 0,             -- the last seq of a partition whose messages are all gone
    created_at timestamptz not null default clock_timestamp(),
    unique (queue_id, name)
);

create table queen.messages (
    partition_id bigint not null,
    id bigint not null,                             -- order of commits inside a partition
    seq bigint not null,                            -- 1, 2, 3 … inside a partition: depth and lag by subtraction
    created_at timestamptz not null,                -- never runs backwards inside a partition
    group_id integer,                               -- a replayed dead letter is for one group; null: for all
    key_id text,                                    -- the key that encrypted the payload; null: plain
    transaction_id text collate "C" not null,
    trace_id text,
    producer_sub text,
    payload bytea not null,                         -- JSON as it was sent, or sealed
    primary key (partition_id, id)
);
create unique index messages_transaction on queen.messages (partition_id, transaction_id);

create table queen.groups (
    id integer generated always as identity primary key,
    queue_id integer not null references queen.queues (id) on delete cascade,
    name text collate "C" not null,
    subscription_mode text not null,
    subscription_from timestamptz,                  -- nothing older is delivered
    start_id bigint not null default 0,             -- where it starts in partitions made later
    active boolean not null default true,           -- false: progress deleted, subscription kept
    created_at timestamptz not null default clock_timestamp(),
    unique (queue_id, name)
);
create index groups_name on queen.groups (name);

-- Groups that want only what is new and asked before their queue existed: where they start.
create table queen.first_pops (
    queue_name text collate "C" not null,
    group_name text collate "C" not null,
    start_id bigint not null,
    created_at timestamptz not null default clock_timestamp(),
    primary key (queue_name, group_name)
);

-- A group's place in a partition, and the lease on it.
create table queen.cursors (
    partition_id bigint not null,
    group_id integer not null,
    queue_id integer not null,
    acked_id bigint not null default 0,             -- everything up to here is done
    acked_seq bigint not null default 0,
    ready_at timestamptz,                           -- from when a pop may take it (a lease's end included); null: nothing to deliver
    retry_at timestamptz,                           -- a failed message is not delivered before
    lease_id uuid,
    lease_to bigint,                                -- the last message that is out
    lease_to_seq bigint,
    lease_count integer,
    leased_at timestamptz,
    last_lease_id uuid,                             -- the lease that an ack ended last: its acks may be repeated
    exceptions boolean not null default false,      -- some of its messages have rows in deliveries
    acked_at timestamptz,
    primary key (partition_id, group_id)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index cursors_ready on queen.cursors (group_id, ready_at) where ready_at is not null;
create index cursors_lease on queen.cursors (lease_id) where lease_id is not null;

-- What is special about one message for one group: failed tries, done out of order, dead.
create table queen.deliveries (
    partition_id bigint not null,
    group_id integer not null,
    message_id bigint not null,
    tries integer not null default 0,
    error text,
    done_lease uuid,                                -- completed under this lease, before a message ahead of it
    dead boolean not null default false,            -- in the dead letters: the cursor passes it
    primary key (partition_id, group_id, message_id)
);

create table queen.dead_letters (
    id bigint generated always as identity primary key,
    queue_id integer not null references queen.queues (id) on delete cascade,
    partition_id bigint not null,
    group_id integer,
    group_name text collate "C" not null,
    message_id bigint not null,
    transaction_id text collate "C" not null,
    trace_id text,
    producer_sub text,
    key_id text,
    payload bytea not null,
    tries integer not null,
    error text,
    cause text not null check (cause in ('exhausted', 'rejected', 'waited', 'moved')),
    created_at timestamptz not null,
    failed_at timestamptz not null
);
create index dead_letters_queue on queen.dead_letters (queue_id, failed_at desc);
create index dead_letters_failed on queen.dead_letters (failed_at desc);
create index dead_letters_message on queen.dead_letters (partition_id, transaction_id);

create table queen.traces (
    id bigint generated always as identity primary key,
    partition_id bigint not null,
    transaction_id text collate "C" not null,
    group_name text,
    event_type text not null,
    data bytea not null,
    created_at timestamptz not null
);
create index traces_message on queen.traces (partition_id, transaction_id);
create index traces_created on queen.traces (created_at);

create table queen.trace_names (
    name text collate "C" not null,
    trace_id bigint not null references queen.traces (id) on delete cascade,
    primary key (name, trace_id)
);
create index trace_names_trace on queen.trace_names (trace_id);

create table queen.settings (
    key text primary key,
    value jsonb not null,
    updated_at timestamptz not null default clock_timestamp()
);

-- The broker processes that are alive, with their counters.
create table queen.brokers (
    id uuid primary key,
    address text not null,
    hostname text not null,
    pid integer not null,
    version text not null,
    started_at timestamptz not null,
    seen_at timestamptz not null,
    stats jsonb not null default '{}'
);

-- What went through a queue, by minute.
create table queen.queue_stats (
    queue_id integer not null references queen.queues (id) on delete cascade,
    minute timestamptz not null,
    pushed bigint not null default 0,
    duplicates bigint not null default 0,
    popped bigint not null default 0,
    acked bigint not null default 0,
    failed bigint not null default 0,
    dead bigint not null default 0,
    expired bigint not null default 0,
    primary key (queue_id, minute)
);
create index queue_stats_minute on queen.queue_stats (minute);
