-- name: can_write
-- Whether this server takes writes: no standby, and not set to read-only (as managed servers do on a full disk).
select not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off' as can_write;


-- name: queue_by_name
select id, version, name, namespace, task, lease_time_seconds as lease_time, retry_limit,
    retry_delay_ms as retry_delay, ttl_seconds as ttl, max_size, priority,
    delayed_processing_seconds as delayed_processing, window_buffer_seconds as window_buffer,
    retention_enabled, retention_seconds, completed_retention_seconds, max_wait_time_seconds,
    encryption_enabled, dead_letter_queue, dlq_after_max_retries
from queen.queues where name = $1;

-- name: count_queues_upto
-- Up to $1.
select count(*)::integer as n from (select from queen.queues where stream_id is null limit $1) counted;

-- name: count_partitions_upto
-- Up to $1.
select count(*)::integer as n from (select from queen.partitions where queue_id = $2 limit $1) counted;

-- name: count_first_pops_upto
-- Up to $1.
select count(*)::integer as n from (select from queen.first_pops limit $1) counted;

-- name: group_exists
-- Whether a queue has the group, and how many it has in all, up to $1; a stream that reads it is one.
select exists (select from queen.groups where queue_id = $2 and name = $3) as known,
    (select count(*)::integer from (select from queen.groups where queue_id = $2 limit $1) counted) as n;

-- name: ensure_partitions
select queue_id, made_queue, partition_ids from queen.ensure_partitions($1, $2);

-- name: partition_ids
select queen.partition_ids($1, $2) as ids;

-- name: ensure_group
select queen.ensure_group($1, $2, $3, $4, $5, $6) as id;

-- name: first_pop
-- Where a group starts that asks for a queue which does not exist yet.
select queen.first_pop($1, $2) as start_id;

-- name: last_id
select queen.last_id() as id;

-- name: queues_of
-- The queues of a namespace and/or task, those with the higher priority first.
select name from queen.queues
where ($1::text is null or namespace = $1) and ($2::text is null or task = $2) and stream_id is null
order by priority desc, name;

-- name: configure
-- Create a queue or replace all of its options.
insert into queen.queues as q
    (name, namespace, task, lease_time_seconds, retry_limit, retry_delay_ms, ttl_seconds, max_size, priority,
     delayed_processing_seconds, window_buffer_seconds, retention_enabled, retention_seconds,
     completed_retention_seconds, max_wait_time_seconds, encryption_enabled, dead_letter_queue,
     dlq_after_max_retries)
values ($1, coalesce($2, ''), coalesce($3, ''), $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
on conflict (name) do update set
    version = q.version + 1,
    namespace = coalesce($2, q.namespace), task = coalesce($3, q.task),
    lease_time_seconds = $4, retry_limit = $5, retry_delay_ms = $6, ttl_seconds = $7, max_size = $8,
    priority = $9, delayed_processing_seconds = $10, window_buffer_seconds = $11, retention_enabled = $12,
    retention_seconds = $13, completed_retention_seconds = $14, max_wait_time_seconds = $15,
    encryption_enabled = $16, dead_letter_queue = $17, dlq_after_max_retries = $18
returning id, (xmax = 0) as created, namespace, task;

-- name: wake_cursors
-- Options changed: cursors that wait for a delay are looked at again, unless it is a retry's.
update queen.cursors c set ready_at = greatest(coalesce($2, clock_timestamp()), c.retry_at)
from queen.partitions p
where p.queue_id = $1 and c.partition_id = p.id and c.lease_id is null and c.ready_at > coalesce($2, clock_timestamp());

-- name: delete_queue
select queen.delete_queue($1) as existed;

-- name: queue_namespaces
-- All queues of users, for tokens that are limited to some of them.
select name, namespace from queen.queues where stream_id is null;

-- name: queues_of_partitions
-- One row for each partition.
select q.name from queen.partitions p join queen.queues q on q.id = p.queue_id where p.id = any($1::bigint[]);

-- name: queues_of_lease
select distinct q.name from queen.cursors c join queen.queues q on q.id = c.queue_id where c.lease_id = $1;

-- name: queue_of_letter
select q.name from queen.dead_letters d join queen.queues q on q.id = d.queue_id where d.id = $1;
