-- name: stream_rows
select * from queen.streams where $1::text is null or name = $1 order by name;

-- name: stream_source_rows
select s.stream_id, s.queue_id, q.name, s.group_id, s.highest_us, s.idle, s.quiet_since
from queen.stream_sources s join queen.queues q on q.id = s.queue_id
where $1::integer is null or s.stream_id = $1
order by s.stream_id, q.name;

-- name: barrier
select queen.barrier($1, $2) as at;

-- name: delete_stream
select queen.delete_stream($1) as existed;

-- name: stream_seek
select queen.stream_seek($1, $2, $3, $4) as moved;

-- name: forget_windows
select queen.forget_windows($1, $2) as done;

-- name: stream_counts
-- How many windows each stream has. messages: those in its windows, once for each window that holds it.
with moment as (
    select coalesce($2::timestamptz, clock_timestamp()) as now
)
select s.id, n.closed, n.messages, n.unclosed - n.ripe as open, n.ripe
from moment
cross join queen.streams s
cross join lateral (
    select case
        when s.window_type = 'count' then null      -- closed by their last message, never by time
        when s.event_time_path is null then queen.to_us(moment.now) - s.grace_us
        else s.watermark_us - s.grace_us end as until
) ripe
cross join lateral (
    select count(w.closed_at) as closed, coalesce(sum(w.messages), 0)::bigint as messages,
        count(*) filter (where w.closed_at is null) as unclosed,
        count(*) filter (where w.closed_at is null and w.end_us <= ripe.until) as ripe
    from queen.windows w where w.stream_id = s.id
) n
where $1::integer is null or s.id = $1;

-- name: count_leased_windows
-- Over all streams and groups. Each is leased alone.
select count(*) as leased
from queen.streams s
join queen.groups g on g.queue_id = s.queue_id
join queen.cursors c on c.group_id = g.id and c.lease_id is not null
    and c.ready_at > coalesce($1::timestamptz, clock_timestamp());

-- name: stream_groups
-- The groups of a stream, or one of them, in all partitions of its queue or in some ($3). done: what a group is past,
-- without what died.
with moment as (
    select coalesce($4::timestamptz, clock_timestamp()) as now
)
select g.id, g.name as consumer_group, g.subscription_from, n.lag, n.leased, n.last_ack_at, letters.dead,
    greatest(0, n.closed - n.lag - letters.passed) as done
from moment
cross join queen.streams s
join queen.groups g on g.queue_id = s.queue_id and g.active
cross join lateral (
    select coalesce(sum(l.lag), 0)::bigint as lag, count(l.lease_id) as leased, max(l.acked_at) as last_ack_at,
        coalesce(sum(counted.total), 0)::bigint as closed
    from queen.group_lag(g.id, s.queue_id, moment.now) l
    left join lateral queen.partition_counts(l.partition_id, moment.now) counted on true
    where $3::text[] is null or l.partition_name = any ($3)
) n
cross join lateral (
    select count(*) as dead, count(*) filter (where d.message_id <= c.acked_id) as passed
    from queen.dead_letters d
    join queen.partitions p on p.id = d.partition_id
    left join queen.cursors c on c.partition_id = d.partition_id and c.group_id = g.id
    where d.queue_id = s.queue_id and d.group_name = g.name and ($3::text[] is null or p.name = any ($3))
) letters
where s.id = $1 and ($2::text is null or g.name = $2)
order by g.name;

-- name: stream_windows
-- Windows of a stream, those made last first, and what each is to a group ($2). Where few can be in the state asked
-- for ($4), only those are looked at. An attempt is a delivery; of what is done, they are forgotten. $7, $8: those that
-- lie in a span of time, if only in part; a count window lies where its messages do. $9: those made before one.
with moment as (
    select coalesce($6::timestamptz, clock_timestamp()) as now
), reader as materialized (
    select g.id, g.subscription_from from queen.streams s
    join queen.groups g on g.queue_id = s.queue_id and g.active
    where s.id = $1 and g.name = $2::text
), shown as (
    select w.id, w.key, w.start_us, w.end_us, w.first_at, w.last_at, w.messages, w.closed_at, w.complete,
        case
            when w.closed_at is null then
                case when w.end_us <= ripe.until then 'ripe' else 'open' end
            when $2::text is null then 'closed'
            when c.partition_id is null then 'waiting'
            when w.message_id > c.acked_id and d.dead is not true then
                case when c.lease_id is not null and c.ready_at > moment.now and w.message_id <= c.lease_to then 'leased'
                     when reader.subscription_from > (
                         select m.created_at from queen.messages m
                         where m.partition_id = w.partition_id and m.id = w.message_id) then 'done'
                     else 'waiting' end
            when letter.tries is not null then 'dead'
            else 'done' end as state,
        coalesce(d.tries, 0) + coalesce(w.message_id > c.acked_id and w.message_id <= c.lease_to, false)::integer
            as attempts,
        c.ready_at, d.error, letter.tries as letter_tries, letter.error as letter_error
    from moment
    cross join queen.windows w
    join queen.streams s on s.id = w.stream_id
    cross join lateral (
        select case
            when s.window_type = 'count' then null      -- closed by their last message, never by time
            when s.event_time_path is null then queen.to_us(moment.now) - s.grace_us
            else s.watermark_us - s.grace_us end as until
    ) ripe
    left join reader on true
    left join queen.cursors c on c.partition_id = w.partition_id and c.group_id = reader.id
    left join queen.deliveries d on c.exceptions and d.partition_id = c.partition_id and d.group_id = c.group_id
        and d.message_id = w.message_id
    left join lateral (
        select x.tries, x.error from queen.dead_letters x
        where x.partition_id = w.partition_id and x.transaction_id = w.id::text and x.group_name = $2::text
        order by x.id desc limit 1) letter on true
    where w.stream_id = $1 and ($3::text[] is null or w.key = any ($3)) and ($9::bigint is null or w.id < $9)
      and ($7::bigint is null or $7 < case when s.window_type = 'count' then queen.to_us(w.last_at) + 1 else w.end_us end)
      and ($8::bigint is null
           or $8 > case when s.window_type = 'count' then queen.to_us(w.first_at) else w.start_us end)
      and ($4::text is distinct from 'open' or w.closed_at is null)
      and ($4::text is distinct from 'ripe' or $2::text is not null or w.closed_at is null)
      and ($4::text is distinct from 'leased' or w.id in (
          select queen.window_of(m.payload) from reader
          join queen.cursors y on y.group_id = reader.id and y.lease_id is not null
              and y.ready_at > (select now from moment)
          join queen.messages m on m.partition_id = y.partition_id and m.id = y.lease_to))
      and ($4::text is distinct from 'waiting' or not exists (select from reader) or w.partition_id in (
          select y.partition_id from reader
          join queen.cursors y on y.group_id = reader.id and y.ready_at is not null))
      and ($4::text is distinct from 'dead' or w.id in (
          select queen.window_of(x.payload) from queen.dead_letters x
          join queen.streams y on y.queue_id = x.queue_id
          where y.id = $1 and x.group_name = $2::text))
)
select shown.id, shown.key, shown.start_us, shown.end_us, shown.first_at, shown.last_at, shown.messages,
    shown.closed_at, shown.complete, shown.state,
    case shown.state when 'leased' then attempts when 'waiting' then attempts when 'dead' then letter_tries end
        as attempt,
    case shown.state when 'leased' then shown.ready_at end as leased_until,
    case shown.state when 'dead' then letter_error when 'done' then null else shown.error end as error
from shown
where case $4::text
    when 'closed' then shown.closed_at is not null
    when 'ripe' then shown.state in ('ripe', 'waiting')
    else $4 is null or shown.state = $4 end
order by shown.id desc limit $5::integer;

-- name: keys_of_windows
-- A page of the keys that have windows, by name: one step into an index for each.
with recursive keys as (
    (select w.key from queen.windows w
     where w.stream_id = $1 and w.key > coalesce($2::text, '') and w.key >= coalesce($3::text, '')
       and ($3::text is null or w.key < $3 || U&'\+10FFFF')
     order by w.key limit 1)
    union all
    select (select w.key from queen.windows w
            where w.stream_id = $1 and w.key > keys.key and ($3::text is null or w.key < $3 || U&'\+10FFFF')
            order by w.key limit 1)
    from keys where keys.key is not null
)
select key from keys where key is not null limit $4::integer;

-- name: late_by_window
-- How many messages came too late for which windows of some keys, of the last 10,000 that were late.
select l.key, l.start_us, l.end_us, count(*) as messages
from (select x.* from queen.late_messages x where x.stream_id = $1 order by x.id desc limit 10000) l
where l.key = any ($2::text[]) and l.end_us is not null
  and ($3::bigint is null or l.end_us > $3) and ($4::bigint is null or l.start_us < $4)
group by l.key, l.start_us, l.end_us
order by l.key, l.start_us, l.end_us;

-- name: window_by_span
select w.id from queen.windows w where w.stream_id = $1 and w.key = $2 and w.start_us = $3 and w.end_us = $4;

-- name: window_page
-- A page of the messages of a window, the oldest first; large payloads are left out.
select m.id::text, m.transaction_id, m.partition_id::text, m.created_at, m.queue_name as queue,
    m.partition_name as partition, m.key_id, octet_length(m.payload) as size,
    case when octet_length(m.payload) <= $5::integer then m.payload end as payload
from queen.window_messages($1, $2, $3, $4, 9223372036854775807) m;

-- name: late_messages
-- What no window of a stream took, the newest first. The message itself may be gone. total: all, of the same moment.
select l.message_id::text, m.transaction_id, q.name as queue, p.name as partition, l.key, l.event_us, l.start_us,
    l.end_us, l.lateness_us, l.reason, l.noted_at,
    (select count(*) from queen.late_messages x
     where x.stream_id = $1 and ($2::text is null or x.key = $2)) as total
from queen.late_messages l
left join queen.partitions p on p.id = l.partition_id
left join queen.queues q on q.id = p.queue_id
left join queen.messages m on m.partition_id = l.partition_id and m.id = l.message_id
where l.stream_id = $1 and ($2::text is null or l.key = $2)
order by l.id desc limit $3::integer;

-- name: count_late_messages
select count(*) as total from queen.late_messages l
where l.stream_id = $1 and ($2::text is null or l.key = $2);

-- name: explain_sources
-- Each source of a stream: whether it has messages, or has had some (of a key), and since when some wait to be assigned.
select q.id as queue_id, q.name,
    exists (
        select from queen.partitions p
        where p.queue_id = q.id and ($2::text is null or p.name = $2)
          and exists (select from queen.messages m where m.partition_id = p.id)) as has_messages,
    exists (
        select from queen.partitions p
        where p.queue_id = q.id and ($2::text is null or p.name = $2)
          and (p.base_seq > 0 or exists (select from queen.messages m where m.partition_id = p.id))) as had_messages,
    (select c.ready_at from queen.cursors c
     where c.group_id = s.group_id and c.ready_at is not null order by c.ready_at limit 1) as waiting_since
from queen.stream_sources s
join queen.queues q on q.id = s.queue_id
where s.stream_id = $1
order by q.name;

-- name: explain_shared_keys
-- Whether some key of a stream has had messages in two of its sources.
select exists (
    select from queen.stream_sources a
    join queen.partitions p on p.queue_id = a.queue_id
    join queen.stream_sources b on b.stream_id = a.stream_id and b.queue_id > a.queue_id
    join queen.partitions o on o.queue_id = b.queue_id and o.name = p.name
    where a.stream_id = $1
      and (p.base_seq > 0 or exists (select from queen.messages m where m.partition_id = p.id))
      and (o.base_seq > 0 or exists (select from queen.messages m where m.partition_id = o.id))) as shared;

-- name: explain_next
-- The open window that ends first (of a key).
select w.id, w.key, w.start_us, w.end_us, w.messages from queen.windows w
where w.stream_id = $1 and w.closed_at is null and ($2::text is null or w.key = $2)
order by w.end_us, w.start_us, w.key limit 1;

-- name: explain_windows
-- The windows that come next for a group, one of each partition of the stream's queue (or of some, $2): first those
-- that are out, then those that have waited longest.
with moment as (
    select coalesce($3::timestamptz, clock_timestamp()) as now
)
select w.key, w.start_us, w.end_us, w.complete, c.leased_at, c.ready_at,
    c.lease_id is not null and c.ready_at > moment.now as leased,
    c.lease_id is not null and c.ready_at <= moment.now as ran_out,
    coalesce(d.tries, 0) as tries, d.error
from moment
cross join queen.groups g
cross join lateral (
    select x.* from queen.cursors x
    where x.group_id = g.id and x.ready_at is not null
      and ($2::text[] is null or exists (
          select from queen.partitions p where p.id = x.partition_id and p.name = any ($2)))
    order by x.lease_id is null, x.ready_at, x.partition_id limit 20
) c
cross join lateral (
    select m.id, m.payload from queen.messages m
    where m.partition_id = c.partition_id and m.id > c.acked_id
      and (m.group_id is null or m.group_id = g.id)
      and (g.subscription_from is null or m.created_at >= g.subscription_from)
      and (not c.exceptions or not exists (
          select from queen.deliveries x
          where x.partition_id = c.partition_id and x.group_id = g.id and x.message_id = m.id and x.dead))
    order by m.id limit 1
) m
join queen.windows w on w.id = queen.window_of(m.payload)
left join queen.deliveries d on c.exceptions and d.partition_id = c.partition_id and d.group_id = c.group_id
    and d.message_id = m.id
where g.id = $1
order by c.lease_id is null, c.ready_at, c.partition_id;

-- name: explain_dead
-- The last window that died for a group.
select w.key, w.start_us, w.end_us, d.tries, d.error, d.failed_at
from queen.dead_letters d
join queen.partitions p on p.id = d.partition_id
left join queen.windows w on w.id = queen.window_of(d.payload)
where d.queue_id = $1 and d.group_name = $2 and ($3::text[] is null or p.name = any ($3))
order by d.failed_at desc, d.id desc limit 1;

-- name: stream_lock
-- The stream for this transaction alone, if nobody has it.
select pg_try_advisory_xact_lock(72006, $1);

-- name: stream_read
-- What is new in its sources.
select * from queen.stream_read($1, $2, $3, $4);

-- name: stream_advance
-- Move past what was assigned.
select queen.stream_advance($1, $2, $3, $4, $5, $6);

-- name: stream_parts
-- The runs of messages that go to windows.
select queen.add_parts($1, $2, $3, $4, $5, $6);

-- name: stream_fill
-- Make windows, or put more into those that are open.
insert into queen.windows as w (stream_id, key, start_us, end_us, messages, first_at, last_at)
select $1, t.* from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[],
    $7::timestamptz[]) as t (key, start_us, end_us, messages, first_at, last_at)
on conflict (stream_id, key, start_us, end_us) do update
set messages = w.messages + excluded.messages, first_at = least(w.first_at, excluded.first_at),
    last_at = greatest(w.last_at, excluded.last_at)
where w.closed_at is null
returning id, key, start_us, end_us;

-- name: stream_grow
-- Sessions that became longer.
update queen.windows w
set start_us = t.start_us, end_us = t.end_us, messages = w.messages + t.messages,
    first_at = least(w.first_at, t.first_at), last_at = greatest(w.last_at, t.last_at)
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[])
    as t (id, start_us, end_us, messages, first_at, last_at)
where w.id = t.id;

-- name: stream_merge_parts
-- Sessions that became one: what they hold,
update queen.window_parts set window_id = $1 where window_id = any($2);

-- name: stream_merge
-- and they themselves.
with gone as (delete from queen.windows where id = any($2) returning messages, first_at, last_at)
update queen.windows w
set messages = w.messages + gone.messages, first_at = least(w.first_at, gone.first_at),
    last_at = greatest(w.last_at, gone.last_at)
from (select sum(messages) as messages, min(first_at) as first_at, max(last_at) as last_at from gone) gone
where w.id = $1;

-- name: stream_late
-- What no window took.
with late as (
    insert into queen.late_messages (stream_id, key, partition_id, message_id, event_us, start_us, end_us,
        lateness_us, reason, noted_at)
    select $1, t.*, coalesce($10, clock_timestamp())
    from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::text[]) as t
    returning 1
)
update queen.streams set late = late + (select count(*) from late) where id = $1;

-- name: stream_positions
-- How far a key is.
insert into queen.stream_keys as k (stream_id, key, position)
select $1, t.* from unnest($2::text[], $3::bigint[]) as t
on conflict (stream_id, key) do update set position = excluded.position;

-- name: stream_sessions
-- The sessions of keys that are open.
select id, key, start_us, end_us from queen.windows
where stream_id = $1 and key = any($2) and closed_at is null;

-- name: stream_sources
-- What is known of the sources' event times.
update queen.stream_sources s set highest_us = t.highest_us, idle = t.idle, quiet_since = t.quiet_since
from unnest($2::integer[], $3::bigint[], $4::boolean[], $5::timestamptz[])
    as t (queue_id, highest_us, idle, quiet_since)
where s.stream_id = $1 and s.queue_id = t.queue_id;

-- name: stream_ripe
-- Windows that end up to a time, in their order.
select id, key, start_us, end_us, first_at, messages from queen.windows
where stream_id = $1 and closed_at is null and end_us <= $2 order by end_us, start_us, key limit $3;

-- name: stream_full
-- Count windows that are full.
select w.id, w.key, w.start_us, w.end_us, w.first_at, w.messages from queen.windows w
join queen.stream_keys k on k.stream_id = w.stream_id and k.key = w.key and k.position >= w.end_us
where w.stream_id = $1 and w.closed_at is null order by w.last_at, w.end_us, w.key limit $2;

-- name: stream_closed
-- Note which message stands for a window.
update queen.windows w set closed_at = coalesce($5, clock_timestamp()), partition_id = t.partition_id,
    message_id = t.message_id, number = t.number
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) as t (id, partition_id, message_id, number)
where w.id = t.id;

-- name: stream_closed_so_far
-- How many windows of keys are closed.
select key, closed from queen.stream_keys where stream_id = $1 and key = any($2);

-- name: stream_closed_now
-- And how many now.
insert into queen.stream_keys as k (stream_id, key, position, closed)
select $1, t.key, 0, t.closed from unnest($2::text[], $3::bigint[]) as t (key, closed)
on conflict (stream_id, key) do update set closed = excluded.closed;

-- name: stream_next
-- The next window to close.
select min(end_us) from queen.windows where stream_id = $1 and closed_at is null;

-- name: stream_low
-- The time of the first message that is not assigned.
select min(next.ready_at) from queen.stream_sources s
cross join lateral (
    select c.ready_at from queen.cursors c where c.group_id = s.group_id and c.ready_at is not null
    order by c.ready_at limit 1) next
where s.stream_id = $1;

-- name: stream_next_and_now
-- The end of the next window to close, and the time.
select (select min(end_us) from queen.windows where stream_id = $1 and closed_at is null) as next,
    queen.to_us(coalesce($2, clock_timestamp())) as now;

-- name: stream_by_id
-- One stream.
select * from queen.streams where id = $1;

-- name: sources_of_stream
-- Its sources.
select s.queue_id, q.name, s.group_id, s.highest_us, s.idle, s.quiet_since
from queen.stream_sources s join queen.queues q on q.id = s.queue_id where s.stream_id = $1;

-- name: positions_of_keys
-- How far keys are.
select key, position from queen.stream_keys where stream_id = $1 and key = any($2);

-- name: stream_first_positions
-- From where on keys have windows.
insert into queen.stream_keys (stream_id, key, position)
select $1, t.* from unnest($2::text[], $3::bigint[]) as t on conflict do nothing;

-- name: stream_time
-- The time.
select coalesce($1::timestamptz, clock_timestamp());

-- name: stream_last_open
-- The end of the last window that is open.
select max(end_us) from queen.windows where stream_id = $1 and closed_at is null;

-- name: stream_set_watermark
-- Event time has come this far.
update queen.streams set watermark_us = $2 where id = $1;

-- name: stream_first_empty
-- The start of the first window that may have to be made empty.
select min(position) as next from queen.stream_keys where stream_id = $1;

-- name: stream_raise_watermark
-- The clock has come this far, with everything before it assigned.
update queen.streams set watermark_us = greatest(watermark_us, $2) where id = $1 returning id;

-- name: stream_empty_keys
-- Keys that may lack windows up to a start.
select key, position from queen.stream_keys where stream_id = $1 and position <= $2 limit $3;

-- name: stream_make_empty
-- Windows without messages, where there are none.
insert into queen.windows (stream_id, key, start_us, end_us)
select $1, t.* from unnest($2::text[], $3::bigint[], $4::bigint[]) as t on conflict do nothing;
