-- Deliver: claim partitions that are ready, lease them, give their messages.

-- Claim for several requests at once. The groups are tried in their order (the higher priority first).
-- One row for each partition claimed, then one with request = 0 and, unless all are served, how long until more
-- may be ready; request = -1 instead: a group is gone, look again. traces, keys, subjects and tries are null when
-- there are none.
create or replace function queen.pop(
    p_groups integer[], p_partition bigint,
    p_leases uuid[], p_batches integer[], p_counts integer[], p_auto_acks boolean[],
    p_max_bytes bigint, p_durable boolean, p_now timestamptz default null
) returns table (
    request integer, queue_name text, partition_id bigint, partition_name text,
    ids bigint[], transactions text[], traces text[], payloads bytea[], keys text[], subjects text[],
    created timestamptz[], tries integer[], wait_seconds double precision
) language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_group integer;
    v_at integer := 1;                      -- the request that is served
    v_partitions integer := p_counts[1];    -- what it may still take
    v_room integer := p_batches[1];
    v_bytes bigint := p_max_bytes;
    v_keep integer;
    v_seqs bigint[];
    v_size bigint;
    v_alike boolean :=                      -- each wants one partition, any, and as much of it as the others
        p_partition is null and p_batches[1] = all (p_batches)
        and 1 = all (p_counts) and false = all (p_auto_acks);
    v_after timestamptz;                    -- what the group gets of this queue was created after this,
    v_from timestamptz;                     -- not before this,
    v_until timestamptz;                    -- and not after this
    v_small bigint := p_max_bytes / p_batches[1];   -- no batch of such payloads passes p_max_bytes
    v_rows tid[];                           -- the ordinary cursors claimed together
    v_partition_ids bigint[];
    v_acked bigint[];
    v_served integer;
    v_turn record;
    g queen.groups;
    q queen.queues;
    c queen.cursors;
begin
    -- A lease need not outlive a crash of the server: lost, it has ended like one that ran out. So a pop waits for no
    -- disk, unless it acknowledges, or shares its transaction with something else (p_durable).
    if not p_durable and false = all (p_auto_acks) then
        perform set_config('synchronous_commit', 'off', true);
    end if;

    foreach v_group in array p_groups loop
        select * into g from queen.groups where id = v_group and active;
        if not found then
            request := -1;
            return next;
            return;
        end if;
        select * into q from queen.queues where id = g.queue_id;
        v_after := coalesce(v_now - make_interval(secs => q.horizon_seconds), '-infinity');
        v_from := coalesce(g.subscription_from, '-infinity');
        v_until := coalesce(v_now - make_interval(secs => nullif(q.delayed_processing_seconds, 0)), 'infinity');

        -- Requests that are alike are served together from ordinary cursors. The others that were ready as long
        -- (a lease that ran out, failed tries, big payloads, nothing to give) stay locked: the loop takes them first.
        -- Claim and lease are two statements, so that the second sees the rows as they were locked.
        if v_alike and q.lanes = 1 and q.window_buffer_seconds = 0 and q.max_wait_time_seconds = 0 then
            select array_agg(x.ctid), array_agg(x.partition_id), array_agg(x.acked_id)
            into v_rows, v_partition_ids, v_acked
            from (
                select x.ctid, x.partition_id, x.acked_id, x.lease_id, x.exceptions from queen.cursors x
                where x.group_id = v_group and x.ready_at <= v_now
                order by x.ready_at limit cardinality(p_leases) - v_at + 1 for update skip locked
            ) x
            where x.lease_id is null and not x.exceptions;
            if v_rows is not null then
                return query
                update queen.cursors x
                set ready_at = v_now + make_interval(secs => q.lease_time_seconds),
                    acked_id = greatest(x.acked_id, f.ids[1] - 1),
                    acked_seq = greatest(x.acked_seq, f.first_seq - 1),
                    lease_id = p_leases[f.request], lease_to = f.ids[cardinality(f.ids)], lease_to_seq = f.last_seq,
                    lease_count = cardinality(f.ids), leased_at = v_now
                from (
                    select (v_at - 1 + row_number() over ())::integer as request, c.tid, m.*
                    from unnest(v_rows, v_partition_ids, v_acked) as c (tid, partition_id, acked_id)
                    cross join lateral (
                        select array_agg(x.id) as ids, min(x.seq) as first_seq, max(x.seq) as last_seq,
                            array_agg(x.transaction_id) as transactions,
                            case when count(x.trace_id) > 0 then array_agg(x.trace_id) end as traces,
                            array_agg(x.payload) filter (where octet_length(x.payload) <= v_small) as payloads,
                            case when count(x.key_id) > 0 then array_agg(x.key_id) end as keys,
                            case when count(x.producer_sub) > 0 then array_agg(x.producer_sub) end as subjects,
                            array_agg(x.created_at) as created
                        from (
                            select * from queen.messages m
                            where m.partition_id = c.partition_id and m.id > c.acked_id
                              and (m.group_id is null or m.group_id = v_group)
                              and m.created_at > v_after and m.created_at >= v_from and m.created_at <= v_until
                            order by m.id limit p_batches[1]
                        ) x
                        having max(octet_length(x.payload)) <= v_small
                    ) m
                ) f
                where x.ctid = f.tid
                returning f.request, q.name, x.partition_id,
                    (select p.name from queen.partitions p where p.id = x.partition_id),
                    f.ids, f.transactions, f.traces, f.payloads, f.keys, f.subjects, f.created,
                    null::integer[], null::double precision;
                get diagnostics v_served = row_count;
                v_at := v_at + v_served;
            end if;
        end if;

        while v_at <= cardinality(p_leases) loop
            if p_partition is null then
                select * into c from queen.cursors x
                where x.group_id = v_group and x.ready_at <= v_now
                order by x.ready_at limit 1 for update skip locked;
            else
                select * into c from queen.cursors x
                where x.partition_id = p_partition and x.group_id = v_group and x.ready_at <= v_now
                for update skip locked;
            end if;
            exit when not found;

            if q.lanes > 1 then
                select * into v_turn from queen.in_turn(c, q, g, v_now);
                exit when v_turn.busy;
                continue when (v_turn.taken).partition_id is null;
                c := v_turn.taken;
            end if;
            if c.lease_id is not null then
                c := queen.expire_lease(c, q, g, v_now);
                if q.lanes > 1 then
                    perform queen.unblock(c, q, v_now);
                end if;
            end if;
            if q.max_wait_time_seconds > 0 then
                c := queen.bury_waiting(c, q, g, v_now);
            end if;

            ids := null;
            if q.window_buffer_seconds = 0 or coalesce((
                select m.created_at <= v_now - make_interval(secs => q.window_buffer_seconds)
                from queen.messages m where m.partition_id = c.partition_id order by m.id desc limit 1), true)
            then
                select array_agg(x.id), array_agg(x.seq), array_agg(x.transaction_id),
                    case when count(x.trace_id) > 0 then array_agg(x.trace_id) end,
                    array_agg(x.payload),
                    case when count(x.key_id) > 0 then array_agg(x.key_id) end,
                    case when count(x.producer_sub) > 0 then array_agg(x.producer_sub) end,
                    array_agg(x.created_at), array_agg(x.tries), max(x.bytes)
                into ids, v_seqs, transactions, traces, payloads, keys, subjects, created, tries, v_size
                from (
                    select m.id, m.seq, m.transaction_id, m.trace_id, m.payload, m.key_id, m.producer_sub,
                        m.created_at, coalesce(d.tries, 0) as tries,
                        sum(octet_length(m.payload)) over (order by m.id rows unbounded preceding) as bytes
                    from (
                        select * from queen.messages m
                        where m.partition_id = c.partition_id and m.id > c.acked_id
                          and (m.group_id is null or m.group_id = v_group)
                          and m.created_at > v_after and m.created_at >= v_from and m.created_at <= v_until
                          and (not c.exceptions or not exists (
                               select from queen.deliveries dead
                               where dead.partition_id = c.partition_id and dead.group_id = v_group
                                 and dead.message_id = m.id and dead.dead))
                        order by m.id limit v_room
                    ) m
                    left join queen.deliveries d on c.exceptions and d.partition_id = c.partition_id
                        and d.group_id = v_group and d.message_id = m.id
                    order by m.id
                ) x
                where x.bytes - octet_length(x.payload) < v_bytes;
            end if;

            if ids is null then
                c := queen.settle(c, q, g, v_now);
                c.lease_id := null;
                update queen.cursors x
                set ready_at = c.ready_at, acked_id = c.acked_id, acked_seq = c.acked_seq,
                    exceptions = c.exceptions,
                    lease_id = null, lease_to = null, lease_to_seq = null, lease_count = null, leased_at = null
                where x.partition_id = c.partition_id and x.group_id = c.group_id;
                exit when p_partition is not null;
                continue;
            end if;

            -- A message on its last try travels alone: no other is blamed for what it does. (Nobody is, once it is
            -- acknowledged with its delivery.)
            if c.exceptions and not p_auto_acks[v_at] then
                select n into v_keep from unnest(tries) with ordinality as t (tries, n)
                where t.tries > 0 and t.tries >= q.retry_limit order by n limit 1;
                if found and cardinality(ids) > 1 then
                    v_keep := greatest(1, v_keep - 1);
                    ids := ids[1:v_keep]; v_seqs := v_seqs[1:v_keep];
                    transactions := transactions[1:v_keep]; traces := traces[1:v_keep];
                    payloads := payloads[1:v_keep]; keys := keys[1:v_keep]; subjects := subjects[1:v_keep];
                    created := created[1:v_keep]; tries := tries[1:v_keep];
                end if;
            end if;

            -- What lies before the first message delivered is past: expired, dead or another group's.
            c.acked_id := greatest(c.acked_id, ids[1] - 1);
            c.acked_seq := greatest(c.acked_seq, v_seqs[1] - 1);
            if p_auto_acks[v_at] then
                c.acked_id := ids[cardinality(ids)];
                c.acked_seq := v_seqs[cardinality(ids)];
                c := queen.forget(c);
                c := queen.settle(c, q, g, v_now);
                update queen.cursors x
                set ready_at = c.ready_at, acked_id = c.acked_id, acked_seq = c.acked_seq, acked_at = v_now,
                    exceptions = c.exceptions,
                    lease_id = null, lease_to = null, lease_to_seq = null, lease_count = null, leased_at = null
                where x.partition_id = c.partition_id and x.group_id = c.group_id;
            else
                update queen.cursors x
                set ready_at = v_now + make_interval(secs => q.lease_time_seconds),
                    acked_id = c.acked_id, acked_seq = c.acked_seq, exceptions = c.exceptions,
                    lease_id = p_leases[v_at], lease_to = ids[cardinality(ids)],
                    lease_to_seq = v_seqs[cardinality(ids)], lease_count = cardinality(ids), leased_at = v_now
                where x.partition_id = c.partition_id and x.group_id = c.group_id;
            end if;

            request := v_at;
            queue_name := q.name;
            partition_id := c.partition_id;
            select p.name into partition_name from queen.partitions p where p.id = c.partition_id;
            return next;

            v_partitions := v_partitions - 1;
            v_room := v_room - cardinality(ids);
            v_bytes := v_bytes - v_size;
            if p_partition is not null or v_partitions <= 0 or v_room <= 0 or v_bytes <= 0 then
                v_at := v_at + 1;
                v_partitions := p_counts[v_at];
                v_room := p_batches[v_at];
                v_bytes := p_max_bytes;
            end if;
        end loop;
        exit when v_at > cardinality(p_leases);
    end loop;

    request := 0;
    queue_name := null; partition_id := null; partition_name := null;
    ids := null; transactions := null; traces := null; payloads := null; keys := null; subjects := null;
    created := null; tries := null;
    if v_at > cardinality(p_leases) then
        wait_seconds := null;
    elsif p_partition is null then
        select extract(epoch from min(next.ready_at) - v_now) into wait_seconds
        from unnest(p_groups) as wanted (id)
        cross join lateral (
            select x.ready_at from queen.cursors x
            where x.group_id = wanted.id and x.ready_at is not null order by x.ready_at limit 1) next;
    else
        select extract(epoch from min(x.ready_at) - v_now) into wait_seconds from queen.cursors x
        where x.partition_id = p_partition and x.group_id = any (p_groups);
    end if;
    return next;
end $$;

-- When a cursor can be taken again: sets ready_at, and moves it to the end when nothing is left.
-- ready_at becomes null only while no push is under way in the partition: the next one sets it.
create or replace function queen.settle(c queen.cursors, q queen.queues, g queen.groups, p_now timestamptz)
returns queen.cursors language plpgsql as $$
declare
    v_created timestamptz;
    v_locked boolean := false;
    v_tail record;
begin
    loop
        select m.created_at into v_created
        from queen.messages m
        where m.partition_id = c.partition_id and m.id > c.acked_id
          and (m.group_id is null or m.group_id = c.group_id)
          and (q.horizon_seconds is null or m.created_at > p_now - make_interval(secs => q.horizon_seconds))
          and (g.subscription_from is null or m.created_at >= g.subscription_from)
          and (not c.exceptions or not exists (
               select from queen.deliveries d
               where d.partition_id = c.partition_id and d.group_id = c.group_id
                 and d.message_id = m.id and d.dead))
        order by m.id limit 1;
        if found then
            -- Without a delay it is now, also for a window of a stream, whose time may lie ahead of the clock.
            c.ready_at := p_now;
            if q.delayed_processing_seconds > 0 then
                c.ready_at := greatest(p_now, v_created + make_interval(secs => q.delayed_processing_seconds));
            end if;
            if q.window_buffer_seconds > 0 then
                select greatest(c.ready_at, m.created_at + make_interval(secs => q.window_buffer_seconds))
                into c.ready_at
                from queen.messages m where m.partition_id = c.partition_id order by m.id desc limit 1;
            end if;
            return c;
        elsif v_locked then
            select m.id, m.seq into v_tail from queen.messages m
            where m.partition_id = c.partition_id order by m.id desc limit 1;
            if found then
                c.acked_id := greatest(c.acked_id, v_tail.id);
                c.acked_seq := greatest(c.acked_seq, v_tail.seq);
            end if;
            c := queen.forget(c);
            c.ready_at := null;
            return c;
        end if;
        v_locked := pg_try_advisory_xact_lock(72002, (c.partition_id % 1024)::integer);
        if not v_locked then
            c.ready_at := p_now + interval '5 milliseconds';        -- a push is under way: look again soon
            return c;
        end if;
    end loop;
end $$;

-- Drop what is known of single messages up to the cursor.
create or replace function queen.forget(c queen.cursors) returns queen.cursors language plpgsql as $$
begin
    if c.exceptions then
        delete from queen.deliveries d
        where d.partition_id = c.partition_id and d.group_id = c.group_id and d.message_id <= c.acked_id;
        c.exceptions := exists (
            select from queen.deliveries d
            where d.partition_id = c.partition_id and d.group_id = c.group_id);
    end if;
    return c;
end $$;

-- A lease has run out: one more try for every message that was out, and the dead letters for those past the limit.
create or replace function queen.expire_lease(c queen.cursors, q queen.queues, g queen.groups, p_now timestamptz)
returns queen.cursors language plpgsql as $$
declare
    v_ids bigint[];
begin
    v_ids := array(
        select m.id from queen.messages m
        where m.partition_id = c.partition_id and m.id > c.acked_id and m.id <= c.lease_to
          and (m.group_id is null or m.group_id = c.group_id)
          and not exists (
              select from queen.deliveries d
              where d.partition_id = c.partition_id and d.group_id = c.group_id and d.message_id = m.id
                and (d.dead or d.done_lease = c.lease_id))
        order by m.id);
    c := queen.end_lease(c);
    perform queen.count_tries(c, q, g, v_ids, 'the lease expired before an acknowledgement', p_now);
    c.exceptions := true;
    return c;
end $$;

-- The lease is over with messages left: what was completed out of order comes again.
create or replace function queen.end_lease(c queen.cursors) returns queen.cursors language plpgsql as $$
begin
    if c.exceptions then
        delete from queen.deliveries d
        where d.partition_id = c.partition_id and d.group_id = c.group_id
          and d.done_lease is not null and d.tries = 0 and not d.dead;
        update queen.deliveries d set done_lease = null
        where d.partition_id = c.partition_id and d.group_id = c.group_id and d.done_lease is not null;
    end if;
    c.lease_id := null; c.lease_to := null; c.lease_to_seq := null; c.lease_count := null; c.leased_at := null;
    return c;
end $$;

-- Count a failed try; past the queue's limit the message is dead. Gives the ids that are dead now.
create or replace function queen.count_tries(
    c queen.cursors, q queen.queues, g queen.groups, p_ids bigint[], p_error text, p_now timestamptz
) returns bigint[] language plpgsql as $$
declare
    v_dead bigint[];
begin
    insert into queen.deliveries as d (partition_id, group_id, message_id, tries, error)
    select c.partition_id, c.group_id, id, 1, p_error from unnest(p_ids) id
    on conflict (partition_id, group_id, message_id)
    do update set tries = d.tries + 1, error = excluded.error;
    v_dead := array(
        select d.message_id from queen.deliveries d
        where d.partition_id = c.partition_id and d.group_id = c.group_id
          and d.message_id = any (p_ids) and d.tries > q.retry_limit);
    perform queen.bury(c, g, v_dead, null, 'exhausted', p_now);
    return v_dead;
end $$;

-- Put messages among the dead letters of a group; the cursor will pass them.
create or replace function queen.bury(
    c queen.cursors, g queen.groups, p_ids bigint[], p_error text, p_cause text, p_now timestamptz
) returns void language plpgsql as $$
begin
    if cardinality(p_ids) = 0 then
        return;
    end if;
    insert into queen.dead_letters
        (queue_id, partition_id, group_id, group_name, message_id, transaction_id, trace_id, producer_sub,
         key_id, payload, tries, error, cause, created_at, failed_at)
    select g.queue_id, m.partition_id, g.id, g.name, m.id, m.transaction_id, m.trace_id, m.producer_sub,
        m.key_id, m.payload, coalesce(d.tries, 0), coalesce(p_error, d.error), p_cause, m.created_at, p_now
    from queen.messages m
    left join queen.deliveries d on d.partition_id = m.partition_id and d.group_id = g.id and d.message_id = m.id
    where m.partition_id = c.partition_id and m.id = any (p_ids)
    order by m.id;
    insert into queen.deliveries as d (partition_id, group_id, message_id, error, dead)
    select c.partition_id, g.id, id, p_error, true from unnest(p_ids) id
    on conflict (partition_id, group_id, message_id) do update set dead = true;
end $$;

-- maxWaitTimeSeconds: what has waited too long for this group goes to its dead letters.
create or replace function queen.bury_waiting(c queen.cursors, q queen.queues, g queen.groups, p_now timestamptz)
returns queen.cursors language plpgsql as $$
declare
    v_ids bigint[];
begin
    v_ids := array(
        select m.id from queen.messages m
        where m.partition_id = c.partition_id and m.id > c.acked_id
          and (m.group_id is null or m.group_id = c.group_id)
          and m.created_at <= p_now - make_interval(secs => q.max_wait_time_seconds)
          and (g.subscription_from is null or m.created_at >= g.subscription_from)
          and (q.horizon_seconds is null or m.created_at > p_now - make_interval(secs => q.horizon_seconds))
          and not exists (
              select from queen.deliveries d
              where d.partition_id = c.partition_id and d.group_id = c.group_id and d.message_id = m.id and d.dead)
        order by m.id limit 10000);
    if cardinality(v_ids) > 0 then
        perform queen.bury(c, g, v_ids,
            format('waited longer than maxWaitTimeSeconds (%s)', q.max_wait_time_seconds), 'waited', p_now);
        c.exceptions := true;
    end if;
    return c;
end $$;

-- Give leases back without counting a try (a client that went away before its answer, a broker that stops).
create or replace function queen.release(p_leases uuid[], p_now timestamptz default null) returns text[]
language plpgsql as $$
declare
    c queen.cursors;
    q queen.queues;
    g queen.groups;
    v_names text[] := '{}';
begin
    for c in
        select * from queen.cursors where lease_id = any (p_leases) order by partition_id, group_id for update
    loop
        select * into g from queen.groups where id = c.group_id;
        select * into q from queen.queues where id = g.queue_id;
        c := queen.end_lease(c);
        c := queen.settle(c, q, g, coalesce(p_now, clock_timestamp()));
        update queen.cursors x
        set ready_at = c.ready_at, acked_id = c.acked_id, acked_seq = c.acked_seq, exceptions = c.exceptions,
            lease_id = null, lease_to = null, lease_to_seq = null, lease_count = null, leased_at = null
        where x.partition_id = c.partition_id and x.group_id = c.group_id;
        v_names := v_names || q.name;
    end loop;
    return v_names;
end $$;

-- Extend a lease that still holds; null when it does not.
create or replace function queen.extend(p_lease uuid, p_seconds double precision, p_now timestamptz default null)
returns timestamptz language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_until timestamptz;
begin
    -- One lease may hold several partitions.
    update queen.cursors set ready_at = v_now + make_interval(secs => p_seconds)
    where lease_id = p_lease and ready_at > v_now;
    if found then
        v_until := v_now + make_interval(secs => p_seconds);
    end if;
    return v_until;
end $$;
