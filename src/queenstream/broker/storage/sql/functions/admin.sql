-- What the administrative routes ask and do. Counts are differences of seq, found by one step into an index
-- at each end of a partition: exact, except that a message deleted by hand from the middle still counts.

-- What lies in a partition (no row when it is empty). waiting: what its slowest group has yet to complete, or
-- all when it has no group. processing: what is out under a live lease, once whatever the number of groups.
create or replace function queen.partition_counts(p_partition bigint, p_now timestamptz)
returns table (total bigint, waiting bigint, processing bigint, oldest timestamptz, newest timestamptz)
language sql stable as $$
    select last.seq - first.seq + 1,
        greatest(0, last.seq - greatest(first.seq - 1, coalesce(slowest.acked_seq, 0))),
        busy.messages, first.created_at, last.created_at
    from (select m.seq, m.created_at from queen.messages m
          where m.partition_id = p_partition order by m.id limit 1) first
    cross join (select m.seq, m.created_at from queen.messages m
                where m.partition_id = p_partition order by m.id desc limit 1) last
    cross join (select min(c.acked_seq) as acked_seq from queen.cursors c
                where c.partition_id = p_partition) slowest
    cross join lateral (
        select coalesce(sum(upper(r.span) - lower(r.span)), 0)::bigint as messages
        from (
            select unnest(range_agg(int8range(
                greatest(c.acked_seq, first.seq - 1), c.lease_to_seq, '(]'))) as span
            from queen.cursors c
            where c.partition_id = p_partition and c.lease_id is not null and c.ready_at > p_now
              and c.lease_to_seq > greatest(c.acked_seq, first.seq - 1)
        ) r
    ) busy
$$;

-- The sums of a queue's partitions, and its dead letters. pending + processing + completed = total.
create or replace function queen.queue_counts(p_queue integer, p_now timestamptz)
returns table (
    partitions bigint, total bigint, pending bigint, processing bigint, completed bigint,
    dead_letter bigint, oldest timestamptz, newest timestamptz
) language sql stable as $$
    select count(*), coalesce(sum(n.total), 0)::bigint,
        coalesce(sum(greatest(0, n.waiting - n.processing)), 0)::bigint,
        coalesce(sum(n.processing), 0)::bigint,
        coalesce(sum(n.total - n.waiting), 0)::bigint,
        (select count(*) from queen.dead_letters d where d.queue_id = p_queue),
        min(n.oldest), max(n.newest)
    from queen.partitions p
    left join lateral queen.partition_counts(p.id, p_now) n on true
    where p.queue_id = p_queue
$$;

-- Where a group stands in each partition of its queue. A cursor without ready_at has nothing to deliver, so
-- the messages are looked at only where it has one. lease_id is for counting and never leaves the broker.
create or replace function queen.group_lag(p_group integer, p_queue integer, p_now timestamptz)
returns table (
    partition_id bigint, partition_name text, lag bigint, lag_seconds double precision,
    acked_at timestamptz, leased_until timestamptz, lease_id uuid
) language sql stable as $$
    select p.id, p.name, coalesce(behind.lag, 0), coalesce(behind.seconds, 0), c.acked_at,
        case when c.lease_id is not null and c.ready_at > p_now then c.ready_at end,
        case when c.ready_at > p_now then c.lease_id end
    from queen.partitions p
    join queen.cursors c on c.partition_id = p.id and c.group_id = p_group
    left join lateral (
        select greatest(0, last.seq - greatest(c.acked_seq, first.seq - 1)) as lag,
            greatest(0, extract(epoch from p_now - next.created_at))::double precision as seconds
        from (select m.created_at from queen.messages m
              where m.partition_id = p.id and m.id > c.acked_id
                and (m.group_id is null or m.group_id = p_group)
              order by m.id limit 1) next
        cross join (select m.seq from queen.messages m
                    where m.partition_id = p.id order by m.id limit 1) first
        cross join (select m.seq from queen.messages m
                    where m.partition_id = p.id order by m.id desc limit 1) last
        where c.ready_at is not null
    ) behind on true
    where p.queue_id = p_queue
$$;

-- A message for one cursor: dead, completed, processing or pending.
create or replace function queen.state_for(c queen.cursors, p_id bigint, p_now timestamptz) returns text
language sql stable as $$
    select case
        when d.dead then 'dead'
        when p_id <= c.acked_id then 'completed'
        when c.lease_id is null or c.ready_at <= p_now or p_id > c.lease_to then 'pending'
        when d.done_lease = c.lease_id then 'completed'
        else 'processing' end
    from (select) one
    left join queen.deliveries d on c.exceptions and d.partition_id = c.partition_id
        and d.group_id = c.group_id and d.message_id = p_id
$$;

-- A message over all groups: processing if some group has it out; dead if it is among the dead letters of
-- one; completed if every group has passed it; else pending.
create or replace function queen.message_state(
    p_partition bigint, p_id bigint, p_group integer, p_transaction text, p_now timestamptz
) returns text language sql stable as $$
    select case
        when bool_or(s.state = 'processing') then 'processing'
        when exists (
            select from queen.dead_letters d
            where d.partition_id = p_partition and d.transaction_id = p_transaction
              and d.message_id = p_id) then 'dead'
        when bool_and(s.state in ('completed', 'dead')) then 'completed'
        else 'pending' end
    from (
        select queen.state_for(c, p_id, p_now) as state from queen.cursors c
        where c.partition_id = p_partition and (p_group is null or c.group_id = p_group)
    ) s
$$;

-- Messages as they are shown, in the order asked for; a payload of more than p_most_bytes (null: any) is left out.
create or replace function queen.describe_messages(
    p_partitions bigint[], p_ids bigint[], p_most_bytes integer, p_now timestamptz
) returns table (
    id text, transaction_id text, partition_id text, queue text, partition text, namespace text, task text, status text,
    trace_id text, producer_sub text, created_at timestamptz, key_id text, payload bytea, size integer,
    retry_count integer, lease_expires_at timestamptz
) language sql stable as $$
    select m.id::text, m.transaction_id, m.partition_id::text, q.name, p.name, q.namespace, q.task,
        queen.message_state(m.partition_id, m.id, m.group_id, m.transaction_id, p_now),
        m.trace_id, m.producer_sub, m.created_at, m.key_id,
        case when p_most_bytes is null or octet_length(m.payload) <= p_most_bytes then m.payload end,
        octet_length(m.payload), coalesce(tried.tries, 0), leased.until
    from unnest(p_partitions, p_ids) with ordinality as place (partition_id, id, n)
    join queen.messages m on m.partition_id = place.partition_id and m.id = place.id
    join queen.partitions p on p.id = m.partition_id
    join queen.queues q on q.id = p.queue_id
    cross join lateral (
        select max(d.tries) as tries from queen.cursors c
        join queen.deliveries d on d.partition_id = c.partition_id and d.group_id = c.group_id
        where c.partition_id = m.partition_id and c.exceptions and d.message_id = m.id) tried
    cross join lateral (
        select max(c.ready_at) as until from queen.cursors c
        where c.partition_id = m.partition_id and (m.group_id is null or m.group_id = c.group_id)
          and c.lease_id is not null and c.ready_at > p_now
          and m.id > c.acked_id and m.id <= c.lease_to) leased
    order by place.n
$$;

-- Delete one message; the caller holds the partition's lock. A push numbers on from the last message, so
-- when that one goes its number is given back, or kept in the partition if nothing is left.
create or replace function queen.remove_message(p_partition bigint, p_id bigint) returns boolean
language plpgsql as $$
declare
    v_seq bigint;
    v_tail record;
begin
    delete from queen.messages where partition_id = p_partition and id = p_id returning seq into v_seq;
    if not found then
        return false;
    end if;
    update queen.queues q set pusher = null     -- nobody's memory of the last seq holds
    from queen.partitions p where p.id = p_partition and q.id = p.queue_id and q.pusher is not null;
    select m.id, m.seq into v_tail from queen.messages m
    where m.partition_id = p_partition order by m.id desc limit 1;
    if not found then
        update queen.partitions set base_seq = greatest(base_seq, v_seq) where id = p_partition;
    elsif v_tail.id < p_id then
        update queen.cursors
        set acked_seq = least(acked_seq, v_tail.seq), lease_to_seq = least(lease_to_seq, v_tail.seq)
        where partition_id = p_partition and (acked_seq > v_tail.seq or lease_to_seq > v_tail.seq);
    end if;
    delete from queen.deliveries d using queen.cursors c
    where c.partition_id = p_partition and d.partition_id = p_partition
      and d.group_id = c.group_id and d.message_id = p_id;
    return true;
end $$;

-- The locks of a push, for one partition. False: there is no such partition.
create or replace function queen.lock_partition(p_partition bigint) returns boolean
language plpgsql as $$
declare
    v_queue integer;
begin
    select queue_id into v_queue from queen.partitions where id = p_partition;
    perform pg_advisory_xact_lock_shared(72001, v_queue);
    perform pg_advisory_xact_lock(72002, (p_partition % 1024)::integer);
    return exists (select from queen.partitions where id = p_partition);
end $$;

create or replace function queen.delete_message(p_partition bigint, p_transaction text) returns boolean
language plpgsql as $$
declare
    v_id bigint;
begin
    if not queen.lock_partition(p_partition) then
        return false;
    end if;
    select m.id into v_id from queen.find_message(p_partition, p_transaction) m;
    return queen.remove_message(p_partition, v_id);
end $$;

-- What errors have in common: numbers and ids of all kinds become #. The beginning is enough to tell errors apart.
create or replace function queen.fold_error(p_error text) returns text language sql immutable as $$
    select regexp_replace(
        regexp_replace(left(coalesce(p_error, ''), 500),
            '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\m(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\M', '#', 'g'),
        '[0-9]+([.,:][0-9]+)*', '#', 'g')
$$;

-- Move a message to the dead letters of every group that has not passed it, and out of the messages; or of
-- one group only, and then it stays for the others. outcome: moved, missing, no group, passed.
create or replace function queen.move_message(
    p_partition bigint, p_transaction text, p_group text, p_error text, p_now timestamptz default null,
    out outcome text, out groups text[]
) language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    m queen.messages;
    c queen.cursors;
    g queen.groups;
    v_any boolean;
begin
    groups := '{}';
    outcome := 'missing';
    if not queen.lock_partition(p_partition) then
        return;
    end if;
    select * into m from queen.find_message(p_partition, p_transaction);
    if not found then
        return;
    end if;

    v_any := false;
    for c in
        select x.* from queen.cursors x
        where x.partition_id = p_partition and (m.group_id is null or x.group_id = m.group_id)
          and not x.eager     -- a stream that reads it has no dead letters
        order by x.group_id for update
    loop
        v_any := true;
        select * into g from queen.groups x where x.id = c.group_id;
        continue when p_group is not null and g.name <> p_group;
        outcome := 'passed';
        continue when queen.state_for(c, m.id, v_now) in ('completed', 'dead');
        perform queen.bury(c, g, array[m.id], p_error, 'moved', v_now);
        update queen.cursors x set exceptions = true
        where x.partition_id = c.partition_id and x.group_id = c.group_id;
        groups := groups || g.name;
    end loop;

    if not v_any and p_group is null then
        insert into queen.dead_letters
            (queue_id, partition_id, group_id, group_name, message_id, transaction_id, trace_id,
             producer_sub, key_id, payload, tries, error, cause, created_at, failed_at)
        select p.queue_id, m.partition_id, null, '__QUEUE_MODE__', m.id, m.transaction_id, m.trace_id,
            m.producer_sub, m.key_id, m.payload, 0, p_error, 'moved', m.created_at, v_now
        from queen.partitions p where p.id = m.partition_id;
        groups := array['__QUEUE_MODE__'];
    end if;
    if cardinality(groups) > 0 then
        outcome := 'moved';
        if p_group is null then
            perform queen.remove_message(m.partition_id, m.id);
        end if;
    elsif outcome = 'missing' then
        outcome := 'no group';
    end if;
end $$;

-- Replay dead letters: each becomes a new message at the end of its partition, for its group alone (for all
-- groups when that one is gone), and leaves the dead letters. p_payload, if any, replaces what they carry.
-- The transaction id gets the suffix ~retry-<dead letter id>: the pair with the partition is stored once.
create or replace function queen.replay(
    p_letters bigint[], p_payload bytea, p_key text, p_now timestamptz default null
) returns table (
    letter_id bigint, queue_name text, partition_id bigint, transaction_id text, message_id bigint,
    group_name text
) language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_base bigint;
    v_touched bigint[] := array(
        select distinct d.partition_id from queen.dead_letters d where d.id = any (p_letters));
begin
    perform pg_advisory_xact_lock_shared(72001, q)
    from (select distinct d.queue_id as q from queen.dead_letters d
          where d.id = any (p_letters) order by q) queues;
    perform pg_advisory_xact_lock(72002, stripe)
    from (select distinct (p % 1024)::integer as stripe from unnest(v_touched) p order by stripe) stripes;
    update queen.queues q set pusher = null     -- nobody's memory of the last seq holds
    from queen.partitions p where p.id = any (v_touched) and q.id = p.queue_id and q.pusher is not null;
    v_now := coalesce(p_now, clock_timestamp());
    v_base := nextval('queen.batches') << 16;

    return query
    with gone as (
        delete from queen.dead_letters d where d.id = any (p_letters) returning d.*
    ), letter as (
        select gone.*, g.id as live_group, row_number() over (order by gone.id) as n,
            '~retry-' || gone.id as suffix,
            regexp_replace(gone.transaction_id, '~retry-[0-9]+$', '') as origin
        from gone
        left join queen.groups g
            on gone.group_id is not null and g.queue_id = gone.queue_id and g.name = gone.group_name
    ), tail as (
        select t.partition_id, last.created_at, coalesce(last.seq, p.base_seq) as seq
        from unnest(v_touched) as t (partition_id)
        join queen.partitions p on p.id = t.partition_id
        left join lateral (
            select m.seq, m.created_at from queen.messages m
            where m.partition_id = t.partition_id order by m.id desc limit 1
        ) last on true
    ), stored as (
        insert into queen.messages (partition_id, id, seq, created_at, group_id, key_id,
            transaction_id, trace_id, producer_sub, payload)
        select l.partition_id, v_base + l.n,
            tail.seq + row_number() over (partition by l.partition_id order by l.n),
            greatest(v_now, tail.created_at), l.live_group,
            case when p_payload is null then l.key_id else p_key end,
            left(l.origin, 255 - length(l.suffix)) || l.suffix,
            l.trace_id, l.producer_sub, coalesce(p_payload, l.payload)
        from letter l join tail on tail.partition_id = l.partition_id
        returning id, transaction_id
    )
    select l.id, q.name, l.partition_id, s.transaction_id, s.id, l.group_name
    from letter l
    join stored s on s.id = v_base + l.n
    join queen.queues q on q.id = l.queue_id
    order by l.n;

    -- All of the partition's cursors, as a push does: those it is not for pass it at their next pop.
    update queen.cursors c
    set ready_at = v_now + make_interval(
        secs => case when c.eager then 0 else greatest(q.delayed_processing_seconds, q.window_buffer_seconds) end)
    from queen.queues q
    where c.partition_id = any (v_touched) and q.id = c.queue_id
      and (c.ready_at is null or (q.window_buffer_seconds > 0 and c.lease_id is null and not c.eager));
end $$;

-- Delete a group's progress in its queues, or in one; with p_metadata its subscription too. One row each.
-- What streams keep for themselves, and groups of that name that read streams, stay.
create or replace function queen.delete_group(p_name text, p_queue integer, p_metadata boolean)
returns table (queue_name text, deleted bigint) language plpgsql as $$
#variable_conflict use_column
declare
    g queen.groups;
begin
    for g in
        select x.* from queen.groups x
        join queen.queues q on q.id = x.queue_id and q.stream_id is null
        where x.name = p_name and x.stream_id is null and (p_queue is null or x.queue_id = p_queue)
        order by x.queue_id
    loop
        perform pg_advisory_xact_lock(72001, g.queue_id);
        select q.name into queue_name from queen.queues q where q.id = g.queue_id;
        continue when not found;
        delete from queen.deliveries d using queen.partitions p
        where p.queue_id = g.queue_id and d.partition_id = p.id and d.group_id = g.id;
        delete from queen.cursors c using queen.partitions p
        where p.queue_id = g.queue_id and c.partition_id = p.id and c.group_id = g.id;
        get diagnostics deleted = row_count;
        if p_metadata then
            delete from queen.groups x where x.id = g.id;
        else
            update queen.groups x set active = false where x.id = g.id;
        end if;
        return next;
    end loop;
end $$;
