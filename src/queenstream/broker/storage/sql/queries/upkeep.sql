-- name: read_settings
select key, value::text from queen.settings;

-- name: write_setting
insert into queen.settings (key, value) values ($1, $2::text::jsonb)
on conflict (key) do update set value = excluded.value, updated_at = clock_timestamp();

-- name: expire
select queue_name, deleted, more from queen.expire($1, $2);

-- name: bury_overdue
select queen.bury_overdue($1, $2) as done;

-- name: compact
select outcome, live, pages_before, pages_after, seconds from queen.compact($1);

-- name: forget_dead_letters
-- Dead letters past their time go, unless the queue keeps them for good.
with gone as (
    delete from queen.dead_letters d
    where d.id = any (array(
        select old.id from queen.queues q
        cross join lateral (
            select x.id from queen.dead_letters x
            where x.queue_id = q.id and not (q.dlq_after_max_retries and x.cause = 'exhausted')
              and x.failed_at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
            order by x.failed_at desc limit $1) old
        where not q.dead_letter_queue limit $1))
    returning 1)
select count(*)::integer as done from gone;

-- name: forget_traces
with gone as (
    delete from queen.traces t
    where t.id = any (array(
        select x.id from queen.traces x
        where x.created_at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
        order by x.created_at limit $1))
    returning 1)
select count(*)::integer as done from gone;

-- name: forget_stats
with gone as (
    delete from queen.queue_stats s
    where s.ctid = any (array(
        select x.ctid from queen.queue_stats x
        where x.minute < clock_timestamp() - interval '30 days'
        order by x.minute limit $1))
    returning 1)
select count(*)::integer as done from gone;

-- name: forget_first_pops
with gone as (
    delete from queen.first_pops f
    where f.ctid = any (array(
        select x.ctid from queen.first_pops x
        where x.created_at < clock_timestamp() - interval '1 day' limit $1))
    returning 1)
select count(*)::integer as done from gone;

-- name: forget_brokers
with gone as (
    delete from queen.brokers b
    where b.id = any (array(
        select x.id from queen.brokers x
        where x.seen_at < clock_timestamp() - interval '1 minute' limit $1))
    returning 1)
select count(*)::integer as done from gone;

-- name: forget_partitions
select last, looked, deleted, queues from queen.forget_partitions($1, $2, $3, $4);

-- name: forget_groups
select queue_name, group_name from queen.forget_groups($1, $2, $3);

-- name: forget_staged
-- What Spark's tasks staged for sinks for which nothing has been staged for long: no batch of theirs is under way.
with gone as (
    delete from queen.staged s
    where s.ctid = any (array(
        select x.ctid from queen.staged x
        where x.sink in (
            select y.sink from queen.staged y group by y.sink
            having max(y.staged_at)
                < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8))
        limit $1))
    returning 1)
select count(*)::integer as done from gone;

-- name: forget_sinks
-- The stored batches of sinks that have stored none for long. The last one stays: a query may come back to it. Nothing
-- comes back to a sink of a run without a checkpoint, which is forgotten whole.
with idle as (
    select s.sink, case when s.temporary then null else s.last_batch end as stays
    from queen.sinks s
    where s.committed_at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
), gone as (
    delete from queen.sink_batches b
    where b.ctid = any (array(
        select x.ctid from queen.sink_batches x join idle i on i.sink = x.sink
        where x.batch_id is distinct from i.stays limit $1))
    returning 1
), forgotten as (
    delete from queen.sinks s
    where s.ctid = any (array(
        select x.ctid from queen.sinks x join idle i on i.sink = x.sink
        where x.temporary and not exists (select from queen.sink_batches b where b.sink = x.sink) limit $1))
    returning 1
)
select ((select count(*) from gone) + (select count(*) from forgotten))::integer as done;

-- name: heartbeat
-- Whether the functions of this broker are there, in $7: nobody deletes them while they are used.
with used as (
    update queen.function_sets set used_at = clock_timestamp() where name = $7 returning 1
), seen as (
    insert into queen.brokers (id, address, hostname, pid, version, started_at, seen_at, stats, function_set)
    values ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp(), $6::text::jsonb, $7)
    on conflict (id) do update set seen_at = clock_timestamp(), stats = excluded.stats)
select exists (select from used) as has_functions;

-- name: forget_functions
select queen.forget_functions($1, $2, $3, $4) as done;

-- name: goodbye
delete from queen.brokers where id = $1;

-- name: add_stats
-- What each queue counted in the last moments, added to its minute.
insert into queen.queue_stats as s
    (queue_id, minute, pushed, duplicates, popped, acked, failed, dead, expired)
select q.id, date_trunc('minute', clock_timestamp()), d.pushed, d.duplicates, d.popped, d.acked, d.failed, d.dead, d.expired
from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
    as d (name, pushed, duplicates, popped, acked, failed, dead, expired)
join queen.queues q on q.name = d.name
order by q.id
on conflict (queue_id, minute) do update set
    pushed = s.pushed + excluded.pushed, duplicates = s.duplicates + excluded.duplicates,
    popped = s.popped + excluded.popped, acked = s.acked + excluded.acked,
    failed = s.failed + excluded.failed, dead = s.dead + excluded.dead,
    expired = s.expired + excluded.expired;
