-- Streams: reading the sources, closing windows, giving their content. Which message belongs to which window is
-- decided in broker/streams; locks: (72006, stream id) held by the one broker that assigns.

-- The time before which everything that was pushed into these queues is committed: nobody pushes while it is taken.
-- Null: a push has been under way for too long to wait for it.
create or replace function queen.barrier(p_queues integer[], p_now timestamptz default null) returns timestamptz
language plpgsql set lock_timeout = '200ms' as $$
begin
    perform pg_advisory_xact_lock(72001, q) from (select q from unnest(p_queues) q order by q) queues;
    return coalesce(p_now, clock_timestamp());
exception when lock_not_available then
    return null;
end $$;

-- What is new in a stream's sources, by partition, those first that have waited longest. The caller holds the stream.
-- more: the partition has messages beyond these.
create or replace function queen.stream_read(
    p_stream integer, p_partitions integer, p_messages integer, p_payloads boolean
) returns table (
    queue_id integer, partition_id bigint, partition_name text, acked_id bigint,
    ids bigint[], created bigint[], payloads bytea[], keys text[], transactions text[],
    last_id bigint, last_seq bigint, more boolean
) language plpgsql as $$
#variable_conflict use_column
declare
    s queen.stream_sources;
begin
    for s in select * from queen.stream_sources x where x.stream_id = p_stream order by x.queue_id loop
        return query
        select s.queue_id, c.partition_id, (select p.name from queen.partitions p where p.id = c.partition_id),
            c.acked_id, m.ids, m.created, m.payloads, m.keys, m.transactions, coalesce(m.last_id, c.acked_id),
            coalesce(m.last_seq, c.acked_seq), coalesce(m.read, 0) >= p_messages
        from (
            select x.partition_id, x.acked_id, x.acked_seq from queen.cursors x
            where x.group_id = s.group_id and x.ready_at is not null
            order by x.ready_at limit p_partitions for update
        ) c
        cross join lateral (
            select array_agg(x.id) filter (where x.group_id is null) as ids,
                array_agg(queen.to_us(x.created_at)) filter (where x.group_id is null) as created,
                case when p_payloads then array_agg(x.payload) filter (where x.group_id is null) end as payloads,
                case when p_payloads then array_agg(x.key_id) filter (where x.group_id is null) end as keys,
                case when p_payloads and count(x.key_id) > 0
                     then array_agg(x.transaction_id) filter (where x.group_id is null) end as transactions,
                max(x.id) as last_id, max(x.seq) as last_seq, count(*) as read
            from (
                select * from queen.messages m
                where m.partition_id = c.partition_id and m.id > c.acked_id order by m.id limit p_messages
            ) x
        ) m;
    end loop;
end $$;

-- Move the cursors of a stream past what it has assigned. p_next: the time of the first message left, null if all were
-- read; then the cursor rests, unless a push is under way (see queen.settle).
create or replace function queen.stream_advance(
    p_groups integer[], p_partitions bigint[], p_ids bigint[], p_seqs bigint[], p_next timestamptz[],
    p_now timestamptz default null
) returns void language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_locked boolean[];
begin
    v_locked := array(
        select next is null and pg_try_advisory_xact_lock(72002, (partition % 1024)::integer)
        from unnest(p_partitions, p_next) with ordinality as t (partition, next, n) order by n);
    -- Another statement, so that it sees what was committed before the lock was had.
    update queen.cursors c
    set acked_id = t.id, acked_seq = greatest(c.acked_seq, t.seq), acked_at = v_now,
        ready_at = case
            when t.next is not null then t.next
            when not t.locked then v_now
            else (select least(m.created_at, v_now) from queen.messages m
                  where m.partition_id = t.partition and m.id > t.id order by m.id limit 1) end
    from unnest(p_groups, p_partitions, p_ids, p_seqs, p_next, v_locked)
        as t (group_id, partition, id, seq, next, locked)
    where c.partition_id = t.partition and c.group_id = t.group_id;
end $$;

-- The runs of messages that go to windows; one that continues a run makes it longer.
create or replace function queen.add_parts(
    p_windows bigint[], p_partitions bigint[], p_firsts bigint[], p_lasts bigint[], p_counts bigint[], p_before bigint[]
) returns void language sql as $$
    with new as materialized (
        select * from unnest(p_windows, p_partitions, p_firsts, p_lasts, p_counts, p_before)
            as t (window_id, partition_id, first_id, last_id, messages, before_id)
    ), longer as (
        update queen.window_parts p set last_id = new.last_id, messages = p.messages + new.messages
        from new
        where p.window_id = new.window_id and p.partition_id = new.partition_id and p.last_id = new.before_id
        returning new.window_id, new.partition_id, new.first_id
    )
    insert into queen.window_parts (window_id, partition_id, first_id, last_id, messages)
    select new.window_id, new.partition_id, new.first_id, new.last_id, new.messages from new
    where not exists (
        select from longer
        where longer.window_id = new.window_id and longer.partition_id = new.partition_id
          and longer.first_id = new.first_id);
$$;

-- Messages of a window in their order, after a given one: at most p_most, up to p_bytes of payload, one at least.
create or replace function queen.window_messages(
    p_window bigint, p_after_at timestamptz, p_after_id bigint, p_most integer, p_bytes bigint
) returns table (
    id bigint, transaction_id text, payload bytea, key_id text, created_at timestamptz, queue_name text,
    partition_name text, partition_id bigint
) language sql stable as $$
    select x.id, x.transaction_id, x.payload, x.key_id, x.created_at, q.name, p.name, p.id
    from (
        select m.*, sum(octet_length(m.payload)) over (order by m.created_at, m.id) - octet_length(m.payload) as before
        from (
            select m.* from queen.window_parts w
            join queen.messages m on m.partition_id = w.partition_id and m.id >= w.first_id and m.id <= w.last_id
                and m.group_id is null
            where w.window_id = p_window
              and (p_after_id is null or (m.created_at, m.id) > (p_after_at, p_after_id))
            order by m.created_at, m.id
            limit p_most
        ) m
    ) x
    join queen.partitions p on p.id = x.partition_id
    join queen.queues q on q.id = p.queue_id
    where x.before < p_bytes
    order by x.created_at, x.id
$$;

-- A window that was popped, with its first messages; the payload of a stream's own messages is the window's id.
create or replace function queen.window_content(
    p_payload bytea, p_most integer, p_bytes bigint,
    out window_id bigint, out key text, out start_us bigint, out end_us bigint, out first_at timestamptz,
    out last_at timestamptz, out messages bigint, out complete boolean,
    out content_ids bigint[], out content_transactions text[], out content_payloads bytea[], out content_keys text[],
    out content_created timestamptz[], out content_queues text[], out content_partitions text[]
) language plpgsql stable as $$
begin
    if p_payload is null then
        return;
    end if;
    select w.id, w.key, w.start_us, w.end_us, w.first_at, w.last_at, w.messages, w.complete
    into window_id, key, start_us, end_us, first_at, last_at, messages, complete
    from queen.windows w where w.id = queen.window_of(p_payload);
    select array_agg(m.id), array_agg(m.transaction_id), array_agg(m.payload),
        case when count(m.key_id) > 0 then array_agg(m.key_id) end, array_agg(m.created_at),
        array_agg(m.queue_name), array_agg(m.partition_name)
    into content_ids, content_transactions, content_payloads, content_keys, content_created, content_queues,
        content_partitions
    from queen.window_messages(window_id, null, null, p_most, p_bytes) m;
end $$;

-- Delete a stream: its windows, its own queue and its groups in the sources.
create or replace function queen.delete_stream(p_name text) returns boolean language plpgsql as $$
declare
    s queen.streams;
begin
    select * into s from queen.streams where name = p_name;
    if not found then
        return false;
    end if;
    perform pg_advisory_xact_lock(72006, s.id);
    perform queen.drop_source(s.id, x.queue_id) from queen.stream_sources x where x.stream_id = s.id order by x.queue_id;
    delete from queen.streams where id = s.id;
    perform queen.delete_queue(q.name) from queen.queues q where q.id = s.queue_id;
    return true;
end $$;

-- A queue is a source no longer.
create or replace function queen.drop_source(p_stream integer, p_queue integer) returns void language plpgsql as $$
declare
    v_group integer;
begin
    delete from queen.stream_sources where stream_id = p_stream and queue_id = p_queue returning group_id into v_group;
    perform pg_advisory_xact_lock(72001, p_queue);
    delete from queen.cursors c using queen.partitions p
    where p.queue_id = p_queue and c.partition_id = p.id and c.group_id = v_group;
    delete from queen.groups where id = v_group;
end $$;

-- Move a group to the windows that start at a time or later; one that is new begins there. Windows of keys that come
-- later, or that close later, obey the subscription.
create or replace function queen.stream_seek(
    p_queue integer, p_group text, p_at timestamptz, p_now timestamptz default null
) returns integer language plpgsql as $$
declare
    v_group integer := queen.ensure_group(p_queue, p_group, 'from', p_at, null, p_now);
    v_moved integer := queen.seek(v_group, null, p_at, p_now);
begin
    update queen.groups set subscription_from = p_at where id = v_group;
    return v_moved;
end $$;

-- Whether a known group still needs a window.
create or replace function queen.is_needed(w queen.windows) returns boolean language sql stable as $$
    select exists (
        select from queen.streams s join queen.groups g on g.queue_id = s.queue_id and g.active
        where s.id = w.stream_id
          and (w.closed_at is null or exists (
               select from queen.cursors c
               where c.partition_id = w.partition_id and c.group_id = g.id and c.acked_id < w.message_id)))
$$;

-- Up to which message retention may delete in a partition that streams read: not what has no window yet, nor what a
-- window holds that a known group still needs; but whatever is older than a week beyond its time goes.
create or replace function queen.stream_hold(p_partition bigint, p_last bigint, p_now timestamptz) returns bigint
language plpgsql stable as $$
declare
    v_hard constant interval := interval '7 days';
    v_free bigint;
    v_needed bigint;
begin
    select least(p_last, min(c.acked_id)) into v_free
    from queen.cursors c where c.partition_id = p_partition and c.eager;
    select min(w.first_id) into v_needed
    from queen.window_parts w join queen.windows x on x.id = w.window_id
    where w.partition_id = p_partition and w.first_id <= v_free and queen.is_needed(x);
    v_free := least(v_free, v_needed - 1);
    if v_free < p_last then
        v_free := greatest(v_free, least(p_last, queen.id_before(p_partition, p_now - v_hard)));
    end if;
    return v_free;
end $$;

-- Messages of a partition are deleted up to here: the windows that held them are no longer complete.
create or replace function queen.forget_parts(p_partition bigint, p_last bigint) returns void language plpgsql as $$
begin
    update queen.windows w set complete = false
    from queen.window_parts p
    where p.partition_id = p_partition and p.first_id <= p_last and w.id = p.window_id and w.complete;
    delete from queen.window_parts where partition_id = p_partition and last_id <= p_last;
    delete from queen.late_messages l using queen.stream_sources s
    where l.partition_id = p_partition and l.message_id <= p_last and s.stream_id = l.stream_id;
end $$;

-- Forget windows whose messages are gone and that nobody needs, with the messages that stand for them.
create or replace function queen.forget_windows(p_most integer, p_now timestamptz default null) returns integer
language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_forgotten integer := 0;
    w queen.windows;
begin
    if not pg_try_advisory_xact_lock(72004, 2) then
        return 0;
    end if;
    for w in
        select * from queen.windows x
        where not x.complete and x.closed_at is not null
          and not exists (select from queen.window_parts p where p.window_id = x.id)
          and not queen.is_needed(x)
        order by x.id limit p_most
    loop
        perform queen.trim(w.partition_id, w.message_id, null, p_most, v_now);
        delete from queen.windows where id = w.id;
        v_forgotten := v_forgotten + 1;
    end loop;
    return v_forgotten;
end $$;

-- max_in_flight: a key has several partitions (lanes, named <lane>\x1f<key>), its windows go to them in turn. Of a key the
-- first window that is free comes first, and none that is as many ahead of the first unacknowledged one as there are
-- lanes. Locks: (72007, hash of group and key), so that who finds a lane blocked and who frees it see each other.

create or replace function queen.siblings(c queen.cursors, q queen.queues, out key text, out partitions bigint[])
language plpgsql stable as $$
begin
    select substr(p.name, strpos(p.name, e'\x1f') + 1) into key from queen.partitions p where p.id = c.partition_id;
    partitions := array(
        select p.id from generate_series(0, q.lanes - 1) lane
        join queen.partitions p on p.queue_id = q.id and p.name = lane || e'\x1f' || key);
end $$;

-- The cursor whose turn it is among the lanes of this one's key, locked; all null if there is none. Then busy says
-- whether to ask again; otherwise this lane rests until another is acknowledged.
create or replace function queen.in_turn(
    c queen.cursors, q queen.queues, g queen.groups, p_now timestamptz, out taken queen.cursors, out busy boolean
) language plpgsql as $$
declare
    v_lanes record;
    v_turn record;
begin
    select * into v_lanes from queen.siblings(c, q);
    busy := not pg_try_advisory_xact_lock(72007, hashtext(g.id || ':' || v_lanes.key));
    if busy then
        return;
    end if;
    select min(next.number) as first, min(next.number) filter (where next.free) as number,
        (array_agg(next.partition_id order by next.number) filter (where next.free))[1] as partition_id
    into v_turn
    from (
        select x.partition_id, x.lease_id is null or x.ready_at <= p_now as free, w.number
        from unnest(v_lanes.partitions) as lane (id)
        join queen.cursors x on x.partition_id = lane.id and x.group_id = g.id
        cross join lateral (
            select m.payload from queen.messages m
            where m.partition_id = lane.id and m.id > x.acked_id
              and (g.subscription_from is null or m.created_at >= g.subscription_from)
              and not exists (
                  select from queen.deliveries d
                  where d.partition_id = lane.id and d.group_id = g.id and d.message_id = m.id and d.dead)
            order by m.id limit 1
        ) m
        join queen.windows w on w.id = queen.window_of(m.payload)
    ) next;
    if v_turn.number < v_turn.first + q.lanes then
        select * into taken from queen.cursors x
        where x.partition_id = v_turn.partition_id and x.group_id = g.id for update skip locked;
        busy := not found;
    elsif c.lease_id is null then
        update queen.cursors x set ready_at = null where x.partition_id = c.partition_id and x.group_id = c.group_id;
    end if;
end $$;

-- A window of a key is done: the lanes that rest for it may go on.
create or replace function queen.unblock(c queen.cursors, q queen.queues, p_now timestamptz) returns void
language plpgsql as $$
declare
    v_lanes record;
begin
    select * into v_lanes from queen.siblings(c, q);
    perform pg_advisory_xact_lock(72007, hashtext(c.group_id || ':' || v_lanes.key));
    update queen.cursors x set ready_at = p_now
    where x.partition_id = any (v_lanes.partitions) and x.group_id = c.group_id
      and x.ready_at is null and x.lease_id is null
      and exists (select from queen.messages m where m.partition_id = x.partition_id and m.id > x.acked_id);
end $$;
