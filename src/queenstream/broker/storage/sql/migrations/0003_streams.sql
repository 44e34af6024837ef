-- Streams: windows over queues. A closed window is a message in a queue of the stream's own, so that groups, leases,
-- retries and dead letters are those of any queue. Times are whole microseconds since the epoch (queenstream/windows.py).

alter table queen.queues add column stream_id integer;     -- the stream whose windows it holds; null: an ordinary queue
alter table queen.queues add column lanes integer not null default 1;  -- partitions for one key of a stream: max_in_flight
alter table queen.groups add column stream_id integer;     -- the stream that reads its source as this group
-- A stream reads at once what is pushed, whatever delay a queue has for its consumers.
alter table queen.cursors add column eager boolean not null default false;

create table queen.streams (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    namespace text collate "C" not null default '',
    queue_id integer not null,
    partitioned boolean not null,
    window_type text not null check (window_type in ('tumbling', 'sliding', 'session', 'count')),
    size_us bigint,                                 -- of a session: its gap
    slide_us bigint,
    size_count bigint,
    slide_count bigint,
    grace_us bigint not null,
    lease_seconds double precision not null,
    retry_limit integer not null,
    max_in_flight integer not null,
    event_time_path text,                           -- null: windows go by created_at
    idle_timeout_us bigint,
    emit_empty boolean not null,
    subscription_from timestamptz,                  -- where a new group starts; null: at the first message
    watermark_us bigint,                            -- windows that end (grace included) up to here are closed
    emitted_us bigint,                              -- emit_empty: windows were made up to this start
    late bigint not null default 0,
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp()
);

create table queen.stream_sources (
    stream_id integer not null references queen.streams (id) on delete cascade,
    queue_id integer not null references queen.queues (id) on delete cascade,
    group_id integer not null,
    highest_us bigint,                              -- event time: the latest seen
    idle boolean not null default false,            -- holds the watermark no longer
    quiet_since timestamptz,                        -- read to its end since
    primary key (stream_id, queue_id)
);
create index stream_sources_queue on queen.stream_sources (queue_id);

create table queen.windows (
    id bigint generated always as identity primary key,
    stream_id integer not null references queen.streams (id) on delete cascade,
    key text collate "C" not null,
    start_us bigint not null,                       -- of a count window: positions
    end_us bigint not null,
    first_at timestamptz,                           -- created_at of its first and last message
    last_at timestamptz,
    messages bigint not null default 0,
    closed_at timestamptz,                          -- null: open
    partition_id bigint,                            -- of the message that stands for it, once closed
    message_id bigint,
    number bigint,                                  -- 0, 1, 2 … among the closed windows of its key, where there are lanes
    complete boolean not null default true,         -- false: retention took some of its messages
    unique (stream_id, key, start_us, end_us)
);
create index windows_open on queen.windows (stream_id, end_us) where closed_at is null;
create index windows_incomplete on queen.windows (id) where not complete;

-- Which messages a window holds: runs of a partition's messages, none left out.
create table queen.window_parts (
    window_id bigint not null references queen.windows (id) on delete cascade,
    partition_id bigint not null,
    first_id bigint not null,
    last_id bigint not null,
    messages bigint not null,
    primary key (window_id, partition_id, first_id)
);
create index window_parts_source on queen.window_parts (partition_id, first_id);

-- How far a key is: messages so far (count windows), or the start of the next window (emit_empty).
create table queen.stream_keys (
    stream_id integer not null references queen.streams (id) on delete cascade,
    key text collate "C" not null,
    position bigint not null,
    closed bigint not null default 0,               -- windows so far, where there are lanes
    primary key (stream_id, key)
);

-- What no window took.
create table queen.late_messages (
    id bigint generated always as identity primary key,
    stream_id integer not null references queen.streams (id) on delete cascade,
    key text collate "C" not null,
    partition_id bigint not null,
    message_id bigint not null,
    event_us bigint,
    start_us bigint,                                -- the last window that it missed
    end_us bigint,
    lateness_us bigint,
    reason text not null,
    noted_at timestamptz not null
);
create index late_messages_stream on queen.late_messages (stream_id, id);
