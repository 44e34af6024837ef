-- name: live_groups
-- The groups that are furthest behind. Of each, the partitions that have been ready longest are looked at, which an
-- index gives: the cost is that of the groups, however many partitions there are.
select q.name as queue, g.name as consumer_group, oldest.created_at,
    greatest(0, extract(epoch from coalesce($1::timestamptz, clock_timestamp()) - oldest.created_at))::float8
        as lag_seconds
from queen.groups g
join queen.queues q on q.id = g.queue_id and q.stream_id is null
cross join lateral (
    select min(next.created_at) as created_at
    from (select c.partition_id, c.acked_id from queen.cursors c
          where c.group_id = g.id and c.ready_at is not null order by c.ready_at limit 5) c
    cross join lateral (
        select m.created_at from queen.messages m
        where m.partition_id = c.partition_id and m.id > c.acked_id
          and (m.group_id is null or m.group_id = g.id)
        order by m.id limit 1) next
) oldest
where g.active and g.stream_id is null and oldest.created_at is not null
order by oldest.created_at, q.name, g.name limit $2::integer;

-- name: live_database
-- The dead letters of streams are theirs, and are shown there.
select (select count(*) from queen.dead_letters d
        join queen.queues q on q.id = d.queue_id and q.stream_id is null) as dead_letters,
    (select count(*) from pg_stat_activity a
     where a.datname = current_database() and a.backend_type = 'client backend')::integer as connections,
    current_setting('max_connections')::integer as max_connections,
    (select extract(epoch from max(clock_timestamp() - a.xact_start))::float8 from pg_stat_activity a
     where a.datname = current_database() and a.pid <> pg_backend_pid()) as oldest_transaction_seconds;

-- name: queues_of_group
select q.name as queue from queen.groups g
join queen.queues q on q.id = g.queue_id and q.stream_id is null
where g.name = $1 and g.stream_id is null and ($2::text is null or q.name = $2)
order by q.name limit $3::integer;

-- name: watched_lag
-- How far groups are behind, each in a queue or in one partition of it. Only what has something to deliver is read.
select w.n::integer - 1 as n,
    coalesce(sum(greatest(0, last.seq - greatest(first.seq - 1, c.acked_seq))), 0)::bigint as lag,
    greatest(0, coalesce(extract(epoch from
        coalesce($4::timestamptz, clock_timestamp()) - min(next.created_at)), 0))::float8 as lag_seconds
from unnest($1::text[], $2::text[], $3::text[]) with ordinality as w (consumer_group, queue, partition, n)
join queen.queues q on q.name = w.queue and q.stream_id is null
join queen.groups g on g.queue_id = q.id and g.name = w.consumer_group and g.stream_id is null
left join queen.cursors c on c.group_id = g.id and c.ready_at is not null
    and (w.partition is null or c.partition_id = (
        select p.id from queen.partitions p where p.queue_id = q.id and p.name = w.partition))
left join lateral (
    select m.seq from queen.messages m where m.partition_id = c.partition_id order by m.id desc limit 1) last on true
left join lateral (
    select m.seq from queen.messages m where m.partition_id = c.partition_id order by m.id limit 1) first on true
left join lateral (
    select m.created_at from queen.messages m
    where m.partition_id = c.partition_id and m.id > c.acked_id
      and (m.group_id is null or m.group_id = g.id)
    order by m.id limit 1) next on true
group by w.n;
