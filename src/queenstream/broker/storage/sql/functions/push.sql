-- Locks, two classes of advisory locks:
--   (72001, queue id)          shared by every push; exclusive for what changes a queue as a whole
--   (72002, partition % 1024)  exclusive for a push, to the commit: order of ids = order of commits
-- Neither a pop nor an ack waits for them; only a group's very first pop does, which makes its cursors.

-- Store a batch. p_queues, p_stripes (partition % 1024) and p_touched (partitions) hold each value once, the first
-- two in rising order. Rows come partition by partition: p_starts says how many stand before those of each touched
-- one, p_places is each row's place in p_touched (from 1). The payloads are one behind the other; p_ends says where
-- each ends, after a 0. Columns that are null in every row may be null themselves. status is
--   ok     stored; row n (from 1) has the id base + n, unless it is among duplicate_rows
--   stale  a queue was changed or deleted since the caller looked: look again
--   split  a queue with maxSize is among several requests: send them one by one
--   full   the queue's maxSize would be passed: nothing is stored
-- Repeated transactions are rare, so a batch is stored without looking for them, unless p_look says that there
-- were some lately; if the unique index objects, it is looked and stored again.
--
-- Messages of a partition are numbered (seq) without gaps. A broker that is the only one to push into a queue
-- (queues.pusher) knows the last numbers: p_tails, null for those it does not know, and p_last, no earlier than the
-- newest message of those it does. Whoever else stores a message takes pusher away in the same transaction: a broker
-- whose turn comes after that, under the partition's lock, is not believed, and the last messages are read.
-- p_created: each row's created_at, in place of now, for a call without p_tails; it rises inside a partition all the same.
-- owned says what the caller may remember: true all, false only what this call tells, null nothing. A call that may
-- run beside others of the same broker sends no p_tails, and does not make it the pusher: the others could not know.
create or replace function queen.push(
    p_queues integer[], p_versions integer[], p_stripes integer[],
    p_touched bigint[], p_starts integer[], p_places integer[], p_transactions text[],
    p_payloads bytea, p_ends integer[], p_traces text[], p_keys text[], p_subjects text[],
    p_requests integer, p_look boolean, p_pusher bigint, p_tails bigint[], p_last timestamptz,
    p_now timestamptz default null, p_created timestamptz[] default null,
    out status text, out base bigint, out owned boolean, out tails bigint[], out stored_at timestamptz,
    out duplicate_rows integer[], out duplicate_ids bigint[]
) language plpgsql as $$
declare
    v_lock integer;
    v_stale boolean;
    v_limited boolean;
    v_mine boolean;                     -- this broker's already
    v_foreign boolean;                  -- another's
    v_taken integer;
    v_existing bigint[];                -- the id under which a row is stored already
    v_numbers bigint[];                 -- a row's number among those stored; null: all are
    v_times timestamptz[];              -- for each touched partition; null: now
    v_stored bigint[] := p_touched;     -- the partitions that have something new
begin
    foreach v_lock in array p_queues loop
        if pg_advisory_xact_lock_shared(72001, v_lock) is null then end if;
    end loop;
    foreach v_lock in array p_stripes loop
        if pg_advisory_xact_lock(72002, v_lock) is null then end if;
    end loop;

    select bool_or(q.version is distinct from known.version), bool_or(q.max_size > 0),
        bool_and(q.pusher is not distinct from p_pusher),
        bool_or(q.pusher is not null and q.pusher is distinct from p_pusher)
    into v_stale, v_limited, v_mine, v_foreign
    from unnest(p_queues, p_versions) as known (id, version)
    left join queen.queues q on q.id = known.id;
    if v_stale then
        status := 'stale';
        return;
    elsif v_limited and p_requests > 1 then
        status := 'split';
        return;
    end if;
    if v_mine then
        owned := case when p_pusher is not null then true end;
    elsif v_foreign then
        update queen.queues q set pusher = case when p_tails is not null then p_pusher end
        where q.id = any (p_queues) and q.pusher is distinct from p_pusher;
        owned := case when p_tails is not null and p_pusher is not null then false end;
    elsif p_tails is not null then      -- no reason to wait for anybody: the next push can take it as well
        update queen.queues q set pusher = p_pusher
        where q.id in (select l.id from queen.queues l where l.id = any (p_queues) for update skip locked);
        get diagnostics v_taken = row_count;
        owned := case when v_taken = cardinality(p_queues) then false end;
    end if;

    stored_at := coalesce(p_now, clock_timestamp());
    base := nextval('queen.batches') << 16;
    if owned and p_tails is not null and array_position(p_tails, null) is null and stored_at >= p_last then
        tails := p_tails;
    else
        if owned is not true or stored_at < p_last then
            p_tails := null;
        end if;
        select array_agg(seq), array_agg(created_at),
            case when p_created is null then max(created_at) else stored_at end
        into tails, v_times, stored_at
        from (
            select coalesce(t.tail, last.seq, (select base_seq from queen.partitions where id = t.id)) as seq,
                case when p_created is null then greatest(stored_at, last.created_at) else last.created_at end
                    as created_at
            from unnest(p_touched, p_tails) as t (id, tail)
            left join lateral (
                select m.seq, m.created_at from queen.messages m
                where t.tail is null and m.partition_id = t.id order by m.id desc limit 1
            ) last on true
        ) tail;
    end if;

    p_look := p_look or v_limited;
    loop
        if p_look then
            v_existing := queen.stored_already(p_touched, p_places, p_transactions, base);
            if v_limited and queen.is_full(p_queues, p_touched, p_places, v_existing) then
                status := 'full';
                return;
            end if;
            if array_remove(v_existing, null) <> '{}' then
                select array_agg(n), array_agg(existing) into duplicate_rows, duplicate_ids
                from unnest(v_existing) with ordinality as row (existing, n)
                where existing is not null;
                v_numbers := array(
                    select p_starts[place] + count(*) filter (where existing is null) over (partition by place order by n)
                    from unnest(p_places, v_existing) with ordinality as row (place, existing, n) order by n);
                v_stored := array(
                    select distinct p_touched[row.place] from unnest(p_places, v_existing) as row (place, existing)
                    where existing is null);
            end if;
        end if;
        begin
            insert into queen.messages
                (partition_id, id, seq, created_at, key_id, transaction_id, trace_id, producer_sub, payload)
            select p_touched[row.place], base + row.n,
                tails[row.place] - p_starts[row.place] + coalesce(v_numbers[row.n], row.n),
                case when p_created is null then coalesce(v_times[row.place], stored_at)
                     else greatest(p_created[row.n], v_times[row.place]) end,
                row.key_id, row.transaction_id, row.trace_id, row.subject,
                substr(p_payloads, p_ends[row.n] + 1, p_ends[row.n + 1] - p_ends[row.n])
            from unnest(p_places, p_transactions, p_traces, p_keys, p_subjects, v_existing)
                with ordinality as row (place, transaction_id, trace_id, key_id, subject, existing, n)
            where row.existing is null;
            exit;
        exception when unique_violation then
            if p_look then
                raise;
            end if;
            p_look := true;
        end;
    end loop;

    -- A cursor that waits for something else already (a delay, a retry) waits no shorter for this push.
    update queen.cursors c
    set ready_at = greatest(c.ready_at, stored_at + make_interval(
        secs => case when c.eager then 0
                     when c.ready_at is null
                     then greatest(q.delayed_processing_seconds, q.window_buffer_seconds)
                     else q.window_buffer_seconds end))
    from queen.queues q
    where c.partition_id = any (v_stored) and q.id = c.queue_id
      and (c.ready_at is null or (q.window_buffer_seconds > 0 and c.lease_id is null and not c.eager));
    status := 'ok';
end $$;

-- The message of a transaction, by the index on its hash.
create or replace function queen.find_message(p_partition bigint, p_transaction text) returns setof queen.messages
language sql stable as $$
    select * from queen.messages m
    where hashtextextended(m.transaction_id, m.partition_id) = hashtextextended(p_transaction collate "C", p_partition)
      and m.partition_id = p_partition and m.transaction_id = p_transaction
$$;

-- For each row of a batch the id under which its transaction is stored already, or will be by an earlier row of
-- the batch; null for what is new. Under the partition's lock nobody else can store it meanwhile.
create or replace function queen.stored_already(
    p_touched bigint[], p_places integer[], p_transactions text[], p_base bigint
) returns bigint[] language sql volatile as $$
    select array_agg(coalesce(stored, case when first < n then coalesce(first_stored, p_base + first) end) order by n)
    from (
        select n, stored, first_value(n) over same as first, first_value(stored) over same as first_stored
        from (
            select row.n, row.place, row.transaction_id, (
                select m.id from queen.find_message(p_touched[row.place], row.transaction_id) m) as stored
            from unnest(p_places, p_transactions) with ordinality as row (place, transaction_id, n)
        ) looked
        window same as (partition by place, transaction_id order by n)
    ) numbered
$$;

-- Whether the rows that are new would pass the maxSize of their queue.
create or replace function queen.is_full(
    p_queues integer[], p_touched bigint[], p_places integer[], p_existing bigint[]
) returns boolean language plpgsql as $$
declare
    v_lock integer;
begin
    foreach v_lock in array p_queues loop       -- one at a time: two that fit alone may not fit together
        if pg_advisory_xact_lock(72003, v_lock) is null then end if;
    end loop;
    lock table queen.cursors in row share mode;     -- what follows must not see it in the middle of queen.compact
    return exists (
        select from queen.queues q
        cross join lateral (
            select count(*) as rows
            from unnest(p_places, p_existing) as row (place, existing)
            join queen.partitions p on p.id = p_touched[row.place]
            where p.queue_id = q.id and row.existing is null
        ) new
        where q.id = any (p_queues) and q.max_size > 0 and new.rows > 0
          and queen.depth(q.id) + new.rows > q.max_size);
end $$;

-- How many messages wait in a queue: for its slowest group, or in all when it has none.
create or replace function queen.depth(p_queue integer) returns bigint
language sql stable as $$
    select coalesce(sum(greatest(0, last.seq - greatest(first.seq - 1, coalesce(slowest.acked_seq, 0)))), 0)::bigint
    from queen.partitions p
    cross join lateral (
        select m.seq from queen.messages m where m.partition_id = p.id order by m.id desc limit 1) last
    cross join lateral (
        select m.seq from queen.messages m where m.partition_id = p.id order by m.id limit 1) first
    left join lateral (
        select min(c.acked_seq) as acked_seq from queen.cursors c where c.partition_id = p.id) slowest on true
    where p.queue_id = p_queue
$$;
