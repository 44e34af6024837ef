-- name: list_queues
-- A page of the queues, with what lies in them. What streams keep for themselves is in no list.
with chosen as (
    select q.* from queen.queues q
    where ($1::text is null or q.namespace = $1) and ($2::text is null or q.task = $2)
      and ($3::text is null or strpos(lower(q.name), lower($3)) > 0)
      and ($7::text[] is null or q.name = any($7)) and q.stream_id is null
    order by q.name limit $4::integer offset $5::bigint
), moment as (
    select coalesce($6::timestamptz, clock_timestamp()) as now
)
select q.id::text, q.name, q.namespace, q.task, q.created_at,
    q.lease_time_seconds as lease_time, q.retry_limit, q.retry_delay_ms as retry_delay,
    q.ttl_seconds as ttl, q.max_size, q.priority, q.delayed_processing_seconds as delayed_processing,
    q.window_buffer_seconds as window_buffer, q.retention_enabled, q.retention_seconds,
    q.completed_retention_seconds, q.max_wait_time_seconds, q.encryption_enabled, q.dead_letter_queue,
    q.dlq_after_max_retries,
    n.partitions, n.total, n.pending, n.processing, n.completed, n.dead_letter, n.oldest, n.newest,
    (select count(*) from queen.groups g where g.queue_id = q.id and g.stream_id is null) as consumer_groups,
    coalesce(s.pushed, 0)::bigint as pushed, coalesce(s.popped, 0)::bigint as popped,
    coalesce(s.acked, 0)::bigint as acked, coalesce(s.failed, 0)::bigint as failed,
    coalesce(s.dead, 0)::bigint as dead
from chosen q
cross join moment
cross join lateral queen.queue_counts(q.id, moment.now) n
left join lateral (
    select sum(pushed) as pushed, sum(popped) as popped, sum(acked) as acked, sum(failed) as failed,
        sum(dead) as dead
    from queen.queue_stats x where x.queue_id = q.id and x.minute > moment.now - interval '1 minute'
) s on true
order by q.name;

-- name: count_queues
select count(*) as matches from queen.queues q
where ($1::text is null or q.namespace = $1) and ($2::text is null or q.task = $2)
  and ($3::text is null or strpos(lower(q.name), lower($3)) > 0)
  and ($4::text[] is null or q.name = any($4)) and q.stream_id is null;

-- name: list_namespaces
with moment as (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select q.namespace as name, count(*) as queues, sum(n.partitions)::bigint as partitions,
    sum(n.total)::bigint as total, sum(n.pending)::bigint as pending,
    sum(n.processing)::bigint as processing, sum(n.completed)::bigint as completed,
    sum(n.dead_letter)::bigint as dead_letter
from moment
cross join queen.queues q
cross join lateral queen.queue_counts(q.id, moment.now) n
where q.stream_id is null
group by q.namespace order by q.namespace;

-- name: list_tasks
with moment as (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select q.task as name, count(*) as queues, sum(n.partitions)::bigint as partitions,
    sum(n.total)::bigint as total, sum(n.pending)::bigint as pending,
    sum(n.processing)::bigint as processing, sum(n.completed)::bigint as completed,
    sum(n.dead_letter)::bigint as dead_letter
from moment
cross join queen.queues q
cross join lateral queen.queue_counts(q.id, moment.now) n
where q.stream_id is null
group by q.task order by q.task;

-- name: overview
-- Everything, in one row. The empty namespace and task are none.
with moment as (
    select coalesce($1::timestamptz, clock_timestamp()) as now
), counted as (
    select count(*) as queues, count(distinct nullif(q.namespace, '')) as namespaces,
        count(distinct nullif(q.task, '')) as tasks,
        coalesce(sum(n.partitions), 0)::bigint as partitions, coalesce(sum(n.total), 0)::bigint as total,
        coalesce(sum(n.pending), 0)::bigint as pending,
        coalesce(sum(n.processing), 0)::bigint as processing,
        coalesce(sum(n.completed), 0)::bigint as completed,
        coalesce(sum(n.dead_letter), 0)::bigint as dead_letter
    from moment
    cross join queen.queues q
    cross join lateral queen.queue_counts(q.id, moment.now) n
    where q.stream_id is null
), leased as (
    select count(distinct c.lease_id) as leases, count(*) as leased_partitions
    from moment
    cross join queen.cursors c
    join queen.queues q on q.id = c.queue_id and q.stream_id is null
    where c.lease_id is not null and c.ready_at > moment.now
)
select moment.now as timestamp, counted.*, leased.*,
    (select count(distinct g.name) from queen.groups g
     join queen.queues q on q.id = g.queue_id and q.stream_id is null where g.stream_id is null) as consumer_groups,
    (select count(*) from queen.dead_letters d
     join queen.queues q on q.id = d.queue_id and q.stream_id is null
     where d.failed_at > moment.now - interval '1 hour') as dead_last_hour
from moment cross join counted cross join leased;

-- name: throughput
-- What went through the queues, by $1 (minute, hour or day), with a row for every step from $2 to $3.
select step.at as timestamp, coalesce(sum(s.pushed), 0)::bigint as pushed,
    coalesce(sum(s.popped), 0)::bigint as popped, coalesce(sum(s.acked), 0)::bigint as acked,
    coalesce(sum(s.failed), 0)::bigint as failed, coalesce(sum(s.dead), 0)::bigint as dead,
    coalesce(sum(s.expired), 0)::bigint as expired
from generate_series(date_trunc($1::text, $2::timestamptz), $3::timestamptz, ('1 ' || $1::text)::interval)
    as step (at)
left join (
    select date_trunc($1::text, x.minute) as at, x.*
    from queen.queue_stats x
    join queen.queues q on q.id = x.queue_id and q.stream_id is null
    where x.minute >= date_trunc($1::text, $2::timestamptz) and x.minute <= $3::timestamptz
      and ($4::text is null or q.name = $4) and ($5::text is null or q.namespace = $5)
      and ($6::text is null or q.task = $6)
) s on s.at = step.at
group by step.at order by step.at;

-- name: moment
-- What time it is.
select coalesce($1::timestamptz, clock_timestamp()) as now;

-- name: list_partitions
-- A page of the partitions of all queues, with what lies in them.
with chosen as (
    select p.id, p.name, p.created_at, q.name as queue from queen.partitions p
    join queen.queues q on q.id = p.queue_id and q.stream_id is null
    order by q.name, p.name limit $1::integer offset $2::bigint
), moment as (
    select coalesce($3::timestamptz, clock_timestamp()) as now
)
select p.id::text, p.queue, p.name, p.created_at, coalesce(n.total, 0) as total,
    coalesce(n.waiting, 0) as depth, coalesce(n.processing, 0) as processing, n.oldest, n.newest
from chosen p
cross join moment
left join lateral queen.partition_counts(p.id, moment.now) n on true
order by p.queue, p.name;

-- name: queue_partitions
-- A page of the partitions of one queue, by name; a name and a prefix are places in an index.
with chosen as (
    select p.id, p.name, p.created_at from queen.partitions p
    where p.queue_id = (select q.id from queen.queues q where q.name = $1 and q.stream_id is null)
      and p.name > coalesce($5::text, '') and p.name >= coalesce($6::text, '')
      and ($6::text is null or p.name < $6 || U&'\+10FFFF')
    order by p.name limit $2::integer offset $3::bigint
), moment as (
    select coalesce($4::timestamptz, clock_timestamp()) as now
)
select p.id::text, $1::text as queue, p.name, p.created_at, coalesce(n.total, 0) as total,
    coalesce(n.waiting, 0) as depth, coalesce(n.processing, 0) as processing, n.oldest, n.newest
from chosen p
cross join moment
left join lateral queen.partition_counts(p.id, moment.now) n on true
order by p.name;

-- name: waiting_partitions
-- A page of those that a group has something to do in, what could be taken first at the top: an index has this order.
with chosen as (
    select c.partition_id, c.ready_at from queen.cursors c
    where c.group_id = (
        select g.id from queen.groups g join queen.queues q on q.id = g.queue_id
        where q.name = $1 and q.stream_id is null and g.name = $5::text and g.stream_id is null)
      and c.ready_at is not null
    order by c.ready_at limit $2::integer offset $3::bigint
), moment as (
    select coalesce($4::timestamptz, clock_timestamp()) as now
)
select p.id::text, $1::text as queue, p.name, p.created_at, coalesce(n.total, 0) as total,
    coalesce(n.waiting, 0) as depth, coalesce(n.processing, 0) as processing, n.oldest, n.newest
from chosen c
cross join moment
join queen.partitions p on p.id = c.partition_id
left join lateral queen.partition_counts(p.id, moment.now) n on true
order by c.ready_at;

-- name: count_partitions
select count(*) as matches from queen.partitions p
join queen.queues q on q.id = p.queue_id and q.stream_id is null
where ($1::text is null or q.name = $1) and p.name >= coalesce($2::text, '')
  and ($2::text is null or p.name < $2 || U&'\+10FFFF');

-- name: count_waiting_partitions
select count(*) as matches from queen.queues q
join queen.groups g on g.queue_id = q.id and g.name = $2::text and g.stream_id is null
join queen.cursors c on c.group_id = g.id and c.ready_at is not null
where q.name = $1 and q.stream_id is null;

-- name: partition_groups
-- Where each group of a queue stands in some of its partitions.
with moment as (
    select coalesce($3::timestamptz, clock_timestamp()) as now
)
select l.partition_id::text, g.name as consumer_group, l.lag, l.lag_seconds, l.acked_at as last_consumed_at,
    l.leased_until
from moment
cross join queen.queues q
join queen.groups g on g.queue_id = q.id and g.stream_id is null
cross join lateral queen.group_lag(g.id, q.id, moment.now) l
where q.name = $1 and l.partition_id = any ($2::bigint[])
order by l.partition_id, g.name;

-- name: clear_queue
select queen.clear($1, $2) as deleted;
