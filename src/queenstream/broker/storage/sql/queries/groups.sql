-- name: list_groups
-- One row for each queue of each group, or of one group. The groups of streams, and as which streams read, are not here.
with moment as (
    select coalesce($2::timestamptz, clock_timestamp()) as now
)
select g.name, q.name as queue, g.active, g.subscription_mode, g.subscription_from as subscription_timestamp,
    count(l.partition_id) as partitions, coalesce(sum(l.lag), 0)::bigint as lag,
    coalesce(max(l.lag_seconds), 0) as lag_seconds, max(l.acked_at) as last_consumed_at,
    count(distinct l.lease_id) as members,
    extract(epoch from moment.now - max(l.acked_at))::double precision as idle_seconds
from moment
cross join queen.groups g
join queen.queues q on q.id = g.queue_id and q.stream_id is null
left join lateral queen.group_lag(g.id, q.id, moment.now) l on true
where ($1::text is null or g.name = $1) and ($3::text is null or q.name = $3) and g.stream_id is null
group by g.id, q.id, moment.now order by g.name, q.name;

-- name: group_partitions
-- The partitions of a group, those furthest behind first, at most $3 of each queue.
with moment as (
    select coalesce($2::timestamptz, clock_timestamp()) as now
)
select q.name as queue, l.partition_id::text, l.partition_name as partition, l.lag, l.lag_seconds,
    l.acked_at as last_consumed_at, l.leased_until
from moment
cross join queen.groups g
join queen.queues q on q.id = g.queue_id and q.stream_id is null
cross join lateral (
    select * from queen.group_lag(g.id, q.id, moment.now) x
    order by x.lag_seconds desc, x.lag desc, x.partition_name limit $3::integer
) l
where g.name = $1 and g.stream_id is null order by q.name, l.lag_seconds desc, l.lag desc, l.partition_name;

-- name: lagging_groups
-- The partitions whose next message has waited at least so long for a group.
with moment as (
    select coalesce($2::timestamptz, clock_timestamp()) as now
)
select g.name as consumer_group, q.name as queue, l.partition_name as partition, l.lag, l.lag_seconds,
    l.acked_at as last_consumed_at
from moment
cross join queen.groups g
join queen.queues q on q.id = g.queue_id and q.stream_id is null
cross join lateral queen.group_lag(g.id, q.id, moment.now) l
where g.stream_id is null and l.lag > 0 and l.lag_seconds >= $1::double precision
order by l.lag_seconds desc, g.name, q.name, l.partition_name limit $3::integer;

-- name: delete_group
select queue_name, deleted from queen.delete_group($1, $2, $3);

-- name: subscribe_from
-- A new start for a group. start_id would hold it back in what came before the group, so it goes.
update queen.groups g set subscription_mode = 'from', subscription_from = $2, start_id = 0
from queen.queues q
where q.id = g.queue_id and q.stream_id is null and g.stream_id is null and g.name = $1
returning q.name as queue;

-- name: seek
select queen.seek($1, $2, $3, $4, $5) as moved;

-- name: message_time
select m.created_at from queen.messages m where m.partition_id = $1 and m.id = $2;

-- name: preview_seek
-- How many partitions a seek would move, and over how many messages. Without a cursor: from the start.
select count(*) as partitions, coalesce(sum(abs(
        greatest(first.seq - 1, target.seq) - greatest(first.seq - 1, coalesce(c.acked_seq, 0)))), 0)::bigint
    as affected
from queen.partitions p
left join queen.groups g on g.queue_id = p.queue_id and g.name = $2::text
left join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
left join lateral (
    select m.seq from queen.messages m where m.partition_id = p.id order by m.id limit 1) first on true
left join lateral (
    select m.seq from queen.messages m
    where m.partition_id = p.id
      and case when $5::bigint is not null then m.id < $5
               else $4::timestamptz is null or m.id <= (select queen.id_before(p.id, $4::timestamptz)) end
    order by m.id desc limit 1) target on true
where p.queue_id = $1 and ($3::bigint is null or p.id = $3);
