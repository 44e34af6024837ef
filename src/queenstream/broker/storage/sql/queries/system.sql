-- name: queue_gauges
-- Each queue: how much waits, since when, and what is leased out or dead.
select q.name, queen.depth(q.id) as depth,
    extract(epoch from coalesce($1::timestamptz, clock_timestamp()) - oldest.created_at)::float8 as oldest_seconds,
    coalesce(leased.leases, 0) as leases, coalesce(dead.letters, 0) as dead_letters
from queen.queues q
left join lateral (
    select min(first.created_at) as created_at
    from queen.partitions p
    left join lateral (
        select min(c.acked_id) as acked_id from queen.cursors c where c.partition_id = p.id) slowest on true
    cross join lateral (
        select m.created_at from queen.messages m
        where m.partition_id = p.id and m.id > coalesce(slowest.acked_id, 0) order by m.id limit 1) first
    where p.queue_id = q.id
) oldest on true
left join (
    select c.queue_id, count(distinct c.lease_id) as leases from queen.cursors c
    where c.lease_id is not null and c.ready_at > coalesce($1::timestamptz, clock_timestamp())
    group by c.queue_id
) leased on leased.queue_id = q.id
left join (
    select d.queue_id, count(*) as letters from queen.dead_letters d group by d.queue_id
) dead on dead.queue_id = q.id
where q.stream_id is null
order by q.name;

-- name: group_lag
-- How far each group is behind. A cursor with nothing to deliver has no ready_at, so only the others are read.
select q.name as queue, g.name as group_name,
    coalesce(sum(greatest(0, last.seq - greatest(first.seq - 1, c.acked_seq))), 0)::bigint as lag,
    greatest(0, coalesce(extract(epoch from
        coalesce($1::timestamptz, clock_timestamp()) - min(next.created_at)), 0))::float8 as lag_seconds
from queen.groups g
join queen.queues q on q.id = g.queue_id and q.stream_id is null
left join queen.cursors c on c.group_id = g.id and c.ready_at is not null
left join lateral (
    select m.seq from queen.messages m where m.partition_id = c.partition_id order by m.id desc limit 1) last on true
left join lateral (
    select m.seq from queen.messages m where m.partition_id = c.partition_id order by m.id limit 1) first on true
left join lateral (
    select m.created_at from queen.messages m
    where m.partition_id = c.partition_id and m.id > c.acked_id order by m.id limit 1) next on true
where g.active and g.stream_id is null and ($2::text is null or q.name = $2)
group by q.name, g.name
order by q.name, g.name;

-- name: live_brokers
-- By the database's own clock, not the caller's: so is seen_at written.
select id, address, hostname, pid, version, started_at, seen_at, stats::text
from queen.brokers
where seen_at > clock_timestamp() - interval '15 seconds'
order by started_at, id;

-- name: queue_ops
-- What went through, by interval from $1 to $2; intervals in which nothing did are there too.
select bucket.time,
    coalesce(sum(s.pushed), 0)::bigint as pushed, coalesce(sum(s.duplicates), 0)::bigint as duplicates,
    coalesce(sum(s.popped), 0)::bigint as popped, coalesce(sum(s.acked), 0)::bigint as acked,
    coalesce(sum(s.failed), 0)::bigint as failed, coalesce(sum(s.dead), 0)::bigint as dead,
    coalesce(sum(s.expired), 0)::bigint as expired
from generate_series(date_trunc($3, $1::timestamptz, 'UTC'), $2::timestamptz, ('1 ' || $3)::interval) as bucket (time)
left join (
    select s.*, date_trunc($3, s.minute, 'UTC') as time
    from queen.queue_stats s
    join queen.queues q on q.id = s.queue_id and q.stream_id is null
    where s.minute >= date_trunc('minute', $1::timestamptz, 'UTC') and s.minute <= $2::timestamptz
      and ($4::text is null or q.name = $4)
) s on s.time = bucket.time
group by bucket.time
order by bucket.time;

-- name: the_time
select coalesce($1::timestamptz, clock_timestamp()) as now;

-- name: queue_retention
-- What each queue keeps, how much it let go in the last day, and its oldest message.
select q.name as queue, q.ttl_seconds as ttl, q.retention_enabled, q.retention_seconds, q.completed_retention_seconds,
    coalesce(gone.expired, 0)::bigint as expired_last_24h, oldest.created_at as oldest_message_at,
    extract(epoch from coalesce($1::timestamptz, clock_timestamp()) - oldest.created_at)::float8
        as oldest_message_seconds
from queen.queues q
left join lateral (
    select sum(s.expired) as expired from queen.queue_stats s
    where s.queue_id = q.id and s.minute > coalesce($1::timestamptz, clock_timestamp()) - interval '24 hours'
) gone on true
left join lateral (
    select min(first.created_at) as created_at from queen.partitions p
    cross join lateral (
        select m.created_at from queen.messages m where m.partition_id = p.id order by m.id limit 1) first
    where p.queue_id = q.id
) oldest on true
where q.stream_id is null and ($2::text is null or q.name = $2)
order by q.name;

-- name: postgres_database
-- Ages in these views are by the server's own clock: it wrote the times.
select current_setting('server_version') as server_version, pg_database_size(d.datname) as database_bytes,
    d.blks_hit::float8 / nullif(d.blks_hit + d.blks_read, 0) as cache_hit_ratio,
    (select extract(epoch from max(clock_timestamp() - a.xact_start))::float8 from pg_stat_activity a
     where a.datname = d.datname and a.pid <> pg_backend_pid()) as oldest_transaction_seconds
from pg_stat_database d where d.datname = current_database();

-- name: postgres_tables
select t.relname as "table", pg_total_relation_size(t.relid) as total_bytes, pg_table_size(t.relid) as table_bytes,
    pg_indexes_size(t.relid) as index_bytes, t.n_live_tup as live_tuples, t.n_dead_tup as dead_tuples,
    (pg_table_size(t.relid) * (t.n_dead_tup::float8 / greatest(t.n_live_tup + t.n_dead_tup, 1)))::bigint
        as dead_bytes_estimate,
    greatest(t.last_vacuum, t.last_autovacuum) as last_vacuum,
    greatest(t.last_analyze, t.last_autoanalyze) as last_analyze
from pg_stat_user_tables t where t.schemaname = 'queen'
order by total_bytes desc, t.relname;

-- name: postgres_connections
select coalesce(a.state, 'unknown') as state, count(*) as connections from pg_stat_activity a
where a.datname = current_database() and a.backend_type = 'client backend'
group by 1 order by 1;

-- name: postgres_xmin_holders
-- No query texts: they may hold what is nobody's business here.
select a.pid, coalesce(a.application_name, '') as application, a.state, age(a.backend_xmin) as age,
    extract(epoch from clock_timestamp() - a.xact_start)::float8 as transaction_seconds
from pg_stat_activity a
where a.backend_xmin is not null and a.pid <> pg_backend_pid()
order by age(a.backend_xmin) desc, a.pid limit 5;

-- name: postgres_settings
select s.name, current_setting(s.name) as value from pg_settings s
where s.name in ('synchronous_commit', 'fsync', 'full_page_writes', 'wal_level', 'max_connections', 'shared_buffers')
order by s.name;
