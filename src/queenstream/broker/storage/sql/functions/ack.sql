-- Acknowledge. The broker sorts the acks into units, one for each (partition, group) named, in the order in
-- which they are locked; unit i is p_transactions from after p_ends[i - 1] to p_ends[i]. One row for each unit;
-- its arrays are null when everything is done and released; ready: there may be something to deliver now.
--
-- A plain unit is all `completed`, with one lease id (p_leases) or none. p_statuses, p_row_leases and p_errors
-- go with p_transactions; they are null when every unit is plain.
--
-- A cursor moves over the completed prefix only. Completions ahead of a gap are remembered while the lease
-- lives. A failed (or retried) message ends the lease: it and all after it come again, whatever the order
-- in the request. p_strict: the first refusal undoes the whole statement (QS001).
create or replace function queen.ack(
    p_partitions bigint[], p_groups text[], p_ends integer[], p_plain boolean[], p_leases uuid[],
    p_transactions text[], p_statuses text[], p_row_leases uuid[], p_errors text[],
    p_strict boolean default false, p_now timestamptz default null
) returns table (
    unit integer, queue_name text, partition_name text,
    successes boolean[], errors text[], dead boolean[], again boolean[], released boolean, ready boolean
) language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_from integer;
    v_to integer := 0;
    v_count integer;
    v_queue integer;
    v_sent text[];
    v_leased text[];                    -- the messages that are out
    v_whole boolean;                    -- the lease is completed as a whole
    v_ids bigint[];
    v_statuses text[];
    v_leases uuid[];
    v_errors text[];
    c queen.cursors;
    q queen.queues;
    g queen.groups;
begin
    for i in 1 .. cardinality(p_partitions) loop
        v_from := v_to + 1;
        v_to := p_ends[i];
        v_count := v_to - v_from + 1;
        unit := i;
        queue_name := null;
        c := null;
        select p.name, p.queue_id into partition_name, v_queue from queen.partitions p where p.id = p_partitions[i];
        if found then
            if q.id is distinct from v_queue then
                select * into q from queen.queues x where x.id = v_queue;
            end if;
            queue_name := q.name;
            if g.queue_id is distinct from q.id or g.name is distinct from p_groups[i] then
                select * into g from queen.groups x
                where x.queue_id = q.id and x.name = p_groups[i] and x.stream_id is null;
            end if;
            select * into c from queen.cursors x
            where x.partition_id = p_partitions[i] and x.group_id = g.id for update;
        end if;

        if v_count = cardinality(p_transactions) then
            v_sent := p_transactions;
        elsif v_count = 1 then
            v_sent := array[p_transactions[v_to]];
        else        -- not a slice of the array: that walks over it from its start
            v_sent := array(select p_transactions[n] from generate_series(v_from, v_to) n);
        end if;

        v_whole := false;
        if p_plain[i] and c.lease_id is not null and c.lease_count = v_count
           and (p_leases[i] is null or p_leases[i] = c.lease_id) then
            v_leased := array(
                select m.transaction_id from queen.messages m
                where m.partition_id = c.partition_id and m.id > c.acked_id and m.id <= c.lease_to
                  and (m.group_id is null or m.group_id = c.group_id)
                  and (not c.exceptions or not exists (
                       select from queen.deliveries d
                       where d.partition_id = c.partition_id and d.group_id = c.group_id
                         and d.message_id = m.id and d.dead))
                order by m.id);
            v_whole := v_leased = v_sent;
            if not v_whole and cardinality(v_leased) = v_count then
                v_whole := array(select t collate "C" from unnest(v_leased) t order by 1)
                    = array(select t collate "C" from unnest(v_sent) t order by 1);
            end if;
        end if;

        if v_whole then
            c.acked_id := c.lease_to;
            c.acked_seq := c.lease_to_seq;
            if c.exceptions then
                c := queen.forget(c);
            end if;
            c := queen.settle(c, q, g, v_now);
            update queen.cursors x
            set ready_at = c.ready_at, acked_id = c.acked_id, acked_seq = c.acked_seq, acked_at = v_now,
                exceptions = c.exceptions, last_lease_id = c.lease_id,
                lease_id = null, lease_to = null, lease_to_seq = null, lease_count = null, leased_at = null
            where x.partition_id = c.partition_id and x.group_id = c.group_id;
            successes := null; errors := null; dead := null; again := null;
            released := true;
            ready := c.ready_at is not null;
        else
            v_ids := array(
                select (select m.id from queen.find_message(p_partitions[i], t) m) from unnest(v_sent) t);
            if p_plain[i] then
                v_statuses := array_fill('completed'::text, array[v_count]);
                v_leases := array_fill(p_leases[i], array[v_count]);
                v_errors := array_fill(null::text, array[v_count]);
            else
                v_statuses := array(select p_statuses[n] from generate_series(v_from, v_to) n);
                v_leases := array(select p_row_leases[n] from generate_series(v_from, v_to) n);
                v_errors := array(select p_errors[n] from generate_series(v_from, v_to) n);
            end if;
            select a.successes, a.errors, a.dead, a.again, a.released
            into successes, errors, dead, again, released
            from queen.ack_some(c, q, g, p_groups[i], v_sent, v_ids, v_statuses, v_leases, v_errors, v_now) a;
            ready := released;
            if p_strict and false = any (successes) then
                raise exception '%', errors[array_position(successes, false)] using errcode = 'QS001';
            end if;
        end if;
        if released and q.lanes > 1 then
            perform queen.unblock(c, q, v_now);
            ready := true;
        end if;
        return next;
    end loop;
end $$;

-- The general case of an ack for one cursor.
create or replace function queen.ack_some(
    c queen.cursors, q queen.queues, g queen.groups, p_group text, p_transactions text[],
    p_ids bigint[], p_statuses text[], p_leases uuid[], p_errors text[], p_now timestamptz,
    out successes boolean[], out errors text[], out dead boolean[], out again boolean[], out released boolean
) language plpgsql as $$
declare
    v_n integer := cardinality(p_ids);
    v_why text;
    v_good bigint[] := '{}';            -- completed or rejected
    v_bad bigint;                       -- the first that failed or is to be retried
    v_active boolean[];                 -- what does something: not refused, no repeat of what is done
    v_failed bigint[] := '{}';
    v_dead bigint[] := '{}';
    v_known record;
    v_lease uuid := c.lease_id;
    v_open record;                      -- the first message of the lease that is not done
begin
    successes := array_fill(false, array[v_n]);
    errors := array_fill(null::text, array[v_n]);
    dead := successes;
    again := successes;
    v_active := successes;
    released := false;

    for i in 1 .. v_n loop
        v_why := null;
        if c.partition_id is null then
            v_why := format('group %s has no such partition; send the partitionId and consumerGroup of the pop', p_group);
        elsif p_ids[i] is null then
            v_why := format('no message %s in this partition; send the transactionId and partitionId of the pop',
                            p_transactions[i]);
        elsif (p_leases[i] is not null and p_leases[i] is distinct from c.lease_id) or p_ids[i] <= c.acked_id then
            -- What is done may be said again, by who did it.
            if p_leases[i] is null or p_leases[i] is not distinct from c.lease_id
               or p_leases[i] is not distinct from c.last_lease_id then
                dead[i] := p_statuses[i] = 'dlq' and exists (
                    select from queen.dead_letters d
                    where d.partition_id = c.partition_id and d.transaction_id = p_transactions[i]
                      and d.message_id = p_ids[i] and d.group_id = c.group_id);
                successes[i] := dead[i] or (p_statuses[i] = 'completed' and p_ids[i] <= c.acked_id);
            end if;
            continue when successes[i];
            v_why := case when p_leases[i] is distinct from c.lease_id and p_leases[i] is not null
                then 'the lease has ended and does not hold the message any more; pop again'
                else 'the message is acknowledged already' end;
        elsif c.lease_id is null or p_ids[i] > c.lease_to then
            v_why := 'the message is not leased; pop it before acknowledging it';
        end if;
        if v_why is not null then
            errors[i] := v_why;
            continue;
        end if;
        if c.exceptions then
            select d.dead, d.done_lease = c.lease_id as done into v_known from queen.deliveries d
            where d.partition_id = c.partition_id and d.group_id = c.group_id and d.message_id = p_ids[i];
            if v_known.dead or v_known.done then
                -- Settled ahead of a gap: the same may be said again, and nothing else.
                dead[i] := v_known.dead and p_statuses[i] = 'dlq';
                successes[i] := p_statuses[i] = 'completed' or dead[i];
                errors[i] := case when not successes[i] then 'the message is acknowledged already' end;
                continue;
            end if;
        end if;
        successes[i] := true;
        v_active[i] := true;
        if p_statuses[i] in ('failed', 'retry') then
            v_bad := least(v_bad, p_ids[i]);
        end if;
    end loop;

    if not true = any (v_active) then
        return;
    end if;

    -- A message named twice in the request counts once.
    for i in 1 .. v_n loop
        if v_active[i] and p_statuses[i] = 'failed' and p_ids[i] <> all (v_failed) then
            v_failed := v_failed || p_ids[i];
            v_dead := v_dead
                || queen.count_tries(c, q, g, array[p_ids[i]], coalesce(p_errors[i], 'failed'), p_now);
            c.exceptions := true;
        end if;
    end loop;
    for i in 1 .. v_n loop
        continue when not v_active[i];
        if p_ids[i] = any (v_failed) then
            dead[i] := p_ids[i] = any (v_dead);
            again[i] := not dead[i];
        elsif p_ids[i] >= v_bad then
            again[i] := true;
        else
            v_good := v_good || p_ids[i];
            if p_statuses[i] = 'dlq' then
                dead[i] := true;
                continue when p_ids[i] = any (v_dead);
                v_dead := v_dead || p_ids[i];
                perform queen.bury(c, g, array[p_ids[i]],
                    coalesce(p_errors[i], 'rejected by the consumer'), 'rejected', p_now);
                c.exceptions := true;
            end if;
        end if;
    end loop;

    select m.id, m.seq into v_open
    from queen.messages m
    where m.partition_id = c.partition_id and m.id > c.acked_id and m.id <= c.lease_to
      and (m.group_id is null or m.group_id = c.group_id)
      and m.id <> all (v_good)
      and (not c.exceptions or not exists (
          select from queen.deliveries d
          where d.partition_id = c.partition_id and d.group_id = c.group_id and d.message_id = m.id
            and (d.dead or d.done_lease = c.lease_id)))
    order by m.id limit 1;
    released := not found or v_bad is not null;
    if v_bad is not null then       -- the lease ends: what is done behind the first gap comes again
        for i in 1 .. v_n loop
            again[i] := again[i] or coalesce(v_active[i] and not dead[i] and p_ids[i] > v_open.id, false);
        end loop;
    end if;

    if v_open.id is not null then
        c.acked_id := greatest(c.acked_id, v_open.id - 1);
        c.acked_seq := greatest(c.acked_seq, v_open.seq - 1);
    else
        c.acked_id := c.lease_to;
        c.acked_seq := c.lease_to_seq;
    end if;

    if released then
        c := queen.end_lease(c);
        c := queen.forget(c);
        c := queen.settle(c, q, g, p_now);
        if not v_failed <@ v_dead and c.ready_at is not null then       -- a failed message is left
            c.retry_at := p_now + q.retry_delay_ms * interval '1 millisecond';
            c.ready_at := greatest(c.ready_at, c.retry_at);
        end if;
        c.last_lease_id := v_lease;
    else
        insert into queen.deliveries as d (partition_id, group_id, message_id, done_lease)
        select distinct c.partition_id, c.group_id, id, v_lease from unnest(v_good) id where id > c.acked_id
        on conflict (partition_id, group_id, message_id) do update set done_lease = excluded.done_lease;
        if found then
            c.exceptions := true;
        end if;
        c := queen.forget(c);
    end if;
    update queen.cursors x
    set ready_at = c.ready_at, retry_at = c.retry_at,
        acked_id = c.acked_id, acked_seq = c.acked_seq, acked_at = p_now,
        exceptions = c.exceptions, last_lease_id = c.last_lease_id, lease_id = c.lease_id,
        lease_to = c.lease_to, lease_to_seq = c.lease_to_seq, lease_count = c.lease_count, leased_at = c.leased_at
    where x.partition_id = c.partition_id and x.group_id = c.group_id;
end $$;
