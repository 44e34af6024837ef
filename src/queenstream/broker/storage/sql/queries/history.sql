-- name: list_messages
-- A page of messages, the newest first. Only the partitions with the newest matches can hold one of the first
-- $8 + $9, so each partition is asked for its newest, and only so many of them for more.
with moment as (
    select coalesce($10::timestamptz, clock_timestamp()) as now
), span as materialized (
    select p.id, p.name, q.name as queue, q.namespace, q.task,
        greatest(
            case when $6::timestamptz is null then 0 else queen.id_before(p.id, $6) end,
            case $5::text when 'pending' then coalesce(place.slowest, 0)
                          when 'processing' then coalesce(place.out_after, 0) else 0 end
        ) as after_id,
        least(
            case when $7::timestamptz is null then 9223372036854775807
                 else queen.id_before(p.id, $7::timestamptz + interval '1 microsecond') end,
            case $5::text when 'completed' then coalesce(place.completed, 0)
                          when 'processing' then place.out_to else 9223372036854775807 end
        ) as last_id
    from moment
    cross join queen.partitions p
    join queen.queues q on q.id = p.queue_id and q.stream_id is null
    cross join lateral (
        -- where a message of the state asked for can lie at all
        select min(c.acked_id) as slowest, min(greatest(c.acked_id, c.lease_to)) as completed,
            min(c.acked_id) filter (where c.lease_id is not null and c.ready_at > moment.now) as out_after,
            max(c.lease_to) filter (where c.lease_id is not null and c.ready_at > moment.now) as out_to
        from queen.cursors c where $5::text is not null and c.partition_id = p.id) place
    where ($1::text is null or q.name = $1) and ($2::text is null or p.name = $2)
      and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4)
      and ($5::text is distinct from 'processing' or place.out_to is not null)
), newest as (
    select span.*, top.id as top_id
    from span cross join moment
    cross join lateral (
        select m.id from queen.messages m
        where m.partition_id = span.id and m.id > span.after_id and m.id <= span.last_id
          and ($5::text is null or queen.message_state(
               m.partition_id, m.id, m.group_id, m.transaction_id, moment.now) = $5)
        order by m.id desc limit 1) top
    order by top.id desc limit $8::bigint + $9::bigint
), page as (
    select newest.*, one.id as message_id
    from newest cross join moment
    cross join lateral (
        select m.id from queen.messages m
        where m.partition_id = newest.id and m.id > newest.after_id and m.id <= newest.top_id
          and ($5::text is null or queen.message_state(
               m.partition_id, m.id, m.group_id, m.transaction_id, moment.now) = $5)
        order by m.id desc limit $8::bigint + $9::bigint) one
    order by one.id desc limit $8::bigint offset $9::bigint
)
select d.* from queen.describe_messages(
    array(select id from page order by message_id desc), array(select message_id from page order by message_id desc),
    null, (select now from moment)) d;

-- name: list_dead_messages
-- The same for messages that are dead for some group; their rows may be gone from the messages.
select d.message_id::text as id, d.transaction_id, d.partition_id::text, q.name as queue, p.name as partition,
    q.namespace, q.task, 'dead' as status, d.trace_id, d.producer_sub, d.created_at, d.key_id, d.payload,
    d.tries as retry_count, null::timestamptz as lease_expires_at
from queen.dead_letters d
join queen.queues q on q.id = d.queue_id and q.stream_id is null
join queen.partitions p on p.id = d.partition_id
where ($1::text is null or q.name = $1) and ($2::text is null or p.name = $2)
  and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4)
  and ($5::timestamptz is null or d.created_at >= $5) and ($6::timestamptz is null or d.created_at <= $6)
  and not exists (
      select from queen.dead_letters x
      where x.partition_id = d.partition_id and x.transaction_id = d.transaction_id
        and x.message_id = d.message_id and x.id > d.id)
order by d.failed_at desc, d.id desc limit $7::bigint offset $8::bigint;

-- name: one_message
-- A message with all of it, from the messages or else from the dead letters.
select m.id::text, m.transaction_id, m.partition_id::text, q.name as queue, p.name as partition,
    q.namespace, q.task,
    case when m.dead then 'dead' else queen.message_state(m.partition_id, m.id, m.group_id, m.transaction_id,
        coalesce($3::timestamptz, clock_timestamp())) end as status,
    m.trace_id, m.producer_sub, m.created_at, m.key_id, m.payload
from (
    select m.partition_id, m.id, m.group_id, m.transaction_id, m.trace_id, m.producer_sub, m.created_at,
        m.key_id, m.payload, false as dead
    from queen.find_message($1, $2) m
    union all
    select d.partition_id, d.message_id, d.group_id, d.transaction_id, d.trace_id, d.producer_sub,
        d.created_at, d.key_id, d.payload, true
    from queen.dead_letters d where d.partition_id = $1 and d.transaction_id = $2
    order by dead, id desc limit 1
) m
join queen.partitions p on p.id = m.partition_id
join queen.queues q on q.id = p.queue_id;

-- name: message_groups
-- What a message is to each group that it is for, and to those that have it among their dead letters.
with moment as (
    select coalesce($3::timestamptz, clock_timestamp()) as now
), letter as (
    select distinct on (d.group_name) d.group_name, d.tries, d.error from queen.dead_letters d
    where d.partition_id = $1 and d.transaction_id = $2 order by d.group_name, d.id desc
), live as (
    select g.name, queen.state_for(c, m.id, moment.now) as state, c.ready_at, t.tries, t.error,
        case when m.id > c.acked_id then greatest(0, m.seq - c.acked_seq - 1) end as ahead
    from moment
    cross join queen.find_message($1, $2) m
    join queen.cursors c on c.partition_id = m.partition_id and (m.group_id is null or m.group_id = c.group_id)
    join queen.groups g on g.id = c.group_id and g.stream_id is null
    left join queen.deliveries t on t.partition_id = c.partition_id and t.group_id = c.group_id
        and t.message_id = m.id
)
select coalesce(live.name, letter.group_name) as consumer_group,
    case when letter.group_name is not null then 'dead' else live.state end as state,
    coalesce(letter.tries, live.tries, 0) as tries, coalesce(letter.error, live.error) as error,
    case when live.state = 'processing' then live.ready_at end as leased_until, live.ahead
from live full join letter on letter.group_name = live.name
order by 1;

-- name: delete_message
select queen.delete_message($1, $2) as deleted;

-- name: move_message
select outcome, groups from queen.move_message($1, $2, $3, $4, $5);

-- name: list_dead_letters
-- The newest first. cause says how it came here.
select d.id::text, d.transaction_id, d.partition_id::text, q.name as queue, p.name as partition,
    d.group_name as consumer_group, d.error as error_message, d.tries as retry_count, d.producer_sub,
    d.created_at, d.failed_at, d.trace_id, d.cause, d.key_id, d.payload
from queen.dead_letters d
join queen.queues q on q.id = d.queue_id and q.stream_id is null
join queen.partitions p on p.id = d.partition_id
where ($1::text is null or q.name = $1) and ($2::text is null or d.group_name = $2)
  and ($3::text is null or p.name = $3)
  and ($4::timestamptz is null or d.failed_at >= $4) and ($5::timestamptz is null or d.failed_at <= $5)
  and ($6::bigint is null or d.id = $6) and ($9::text is null or queen.fold_error(d.error) = $9)
order by d.failed_at desc, d.id desc limit $7::bigint offset $8::bigint;

-- name: count_dead_letters
select count(*) as total from queen.dead_letters d
join queen.queues q on q.id = d.queue_id and q.stream_id is null
join queen.partitions p on p.id = d.partition_id
where ($1::text is null or q.name = $1) and ($2::text is null or d.group_name = $2)
  and ($3::text is null or p.name = $3)
  and ($4::timestamptz is null or d.failed_at >= $4) and ($5::timestamptz is null or d.failed_at <= $5)
  and ($6::text is null or queen.fold_error(d.error) = $6);

-- name: letter_errors
-- The newest dead letters, at most $5, by queue and by what their errors have in common.
with looked as materialized (
    select d.id, d.queue_id, d.group_name, d.error, d.failed_at, queen.fold_error(d.error) as pattern
    from queen.dead_letters d
    where d.queue_id in (
            select q.id from queen.queues q where q.stream_id is null and ($1::text is null or q.name = $1))
      and ($2::text is null or d.group_name = $2)
      and ($3::timestamptz is null or d.failed_at >= $3) and ($4::timestamptz is null or d.failed_at <= $4)
    order by d.failed_at desc, d.id desc limit $5::bigint
)
select q.name as queue, l.pattern, count(*) as letters, min(l.failed_at) as first_failed_at,
    max(l.failed_at) as last_failed_at,
    (array_agg(distinct l.group_name))[1:20] as consumer_groups,
    (array_agg(l.error order by l.failed_at desc, l.id desc))[1] as example,
    (array_agg(l.id order by l.failed_at desc, l.id desc))[1]::text as example_id,
    (select count(*) from looked) as looked
from looked l join queen.queues q on q.id = l.queue_id
group by q.name, l.pattern
order by count(*) desc, max(l.failed_at) desc, q.name, l.pattern limit $6::integer;

-- name: letters_of_message
select d.id, q.name as queue, p.name as partition, d.transaction_id from queen.dead_letters d
join queen.queues q on q.id = d.queue_id
join queen.partitions p on p.id = d.partition_id
where d.partition_id = $1 and d.transaction_id = $2 and ($3::text is null or d.group_name = $3)
order by d.id;

-- name: letters_like
-- The dead letters of a queue that fit, in the order in which they died.
select d.id from queen.dead_letters d
join queen.queues q on q.id = d.queue_id and q.stream_id is null
join queen.partitions p on p.id = d.partition_id
where q.name = $1 and ($2::text is null or d.group_name = $2) and ($3::text is null or p.name = $3)
  and ($4::text is null or strpos(lower(d.error), lower($4)) > 0)
  and ($6::text is null or queen.fold_error(d.error) = $6)
order by d.id limit $5::bigint;

-- name: replay
select letter_id::text, queue_name, transaction_id, message_id::text, group_name
from queen.replay($1, $2, $3, $4);

-- name: delete_letters
delete from queen.dead_letters where id = any ($1::bigint[]) returning id;

-- name: add_trace
-- The trace of a message that exists, alive or dead; no row if it does not.
with trace as (
    insert into queen.traces (partition_id, transaction_id, group_name, event_type, data, created_at)
    select $1, $2, $3, $4, $5, coalesce($7::timestamptz, clock_timestamp())
    where exists (select from queen.find_message($1, $2))
       or exists (select from queen.dead_letters d where d.partition_id = $1 and d.transaction_id = $2)
    returning id
), named as (
    insert into queen.trace_names (name, trace_id)
    select distinct n, trace.id from trace, unnest($6::text[]) n
)
select id::text from trace;

-- name: traces_of_message
-- The oldest first.
select t.id::text, t.transaction_id, t.partition_id::text, t.group_name as consumer_group, t.event_type,
    t.data, t.created_at,
    array(select n.name from queen.trace_names n where n.trace_id = t.id order by n.name) as trace_names
from queen.traces t
where t.partition_id = $1 and t.transaction_id = $2
order by t.id limit $3::bigint offset $4::bigint;

-- name: traces_by_name
-- The newest first.
select t.id::text, t.transaction_id, t.partition_id::text, t.group_name as consumer_group, t.event_type,
    t.data, t.created_at,
    array(select n.name from queen.trace_names n where n.trace_id = t.id order by n.name) as trace_names
from queen.trace_names named
join queen.traces t on t.id = named.trace_id
where named.name = $1
  and ($2::timestamptz is null or t.created_at >= $2) and ($3::timestamptz is null or t.created_at <= $3)
order by t.id desc limit $4::bigint offset $5::bigint;

-- name: count_traces_by_name
select count(*) as total from queen.trace_names named
join queen.traces t on t.id = named.trace_id
where named.name = $1
  and ($2::timestamptz is null or t.created_at >= $2) and ($3::timestamptz is null or t.created_at <= $3);

-- name: trace_name_list
-- The names in use, the one seen last first.
select n.name, count(*) as traces, count(distinct (t.partition_id, t.transaction_id)) as messages,
    max(t.created_at) as last_seen
from queen.trace_names n
join queen.traces t on t.id = n.trace_id
where ($1::text is null or strpos(lower(n.name), lower($1)) > 0)
group by n.name order by last_seen desc, n.name limit $2::bigint offset $3::bigint;

-- name: count_trace_names
select count(distinct n.name) as total from queen.trace_names n
where ($1::text is null or strpos(lower(n.name), lower($1)) > 0);

-- name: bury_acknowledged
-- Put messages that a group has passed among its dead letters.
insert into queen.dead_letters
    (queue_id, partition_id, group_id, group_name, message_id, transaction_id, trace_id, producer_sub,
     key_id, payload, tries, error, cause, created_at, failed_at)
select g.queue_id, m.partition_id, g.id, g.name, m.id, m.transaction_id, m.trace_id, m.producer_sub,
    m.key_id, m.payload, 0, $4, 'rejected', m.created_at, coalesce($5::timestamptz, clock_timestamp())
from queen.messages m
join queen.partitions p on p.id = m.partition_id
join queen.groups g on g.queue_id = p.queue_id and g.name = $2 and g.stream_id is null
where m.partition_id = $1 and m.id = any ($3::bigint[]);
