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
delete from queen.dead_letters d using queen.queues q
where q.id = d.queue_id and d.failed_at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $1)
  and not q.dead_letter_queue and not (q.dlq_after_max_retries and d.cause = 'exhausted');

-- name: forget_traces
delete from queen.traces where created_at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $1);

-- name: forget_stats
delete from queen.queue_stats where minute < clock_timestamp() - interval '30 days';

-- name: forget_first_pops
delete from queen.first_pops where created_at < clock_timestamp() - interval '1 day';

-- name: forget_brokers
delete from queen.brokers where seen_at < clock_timestamp() - interval '1 minute';

-- name: heartbeat
insert into queen.brokers (id, address, hostname, pid, version, started_at, seen_at, stats)
values ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp(), $6::text::jsonb)
on conflict (id) do update set seen_at = clock_timestamp(), stats = excluded.stats;

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
