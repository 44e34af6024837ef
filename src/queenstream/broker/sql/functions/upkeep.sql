-- Upkeep, in small steps. One broker at a time does it; the others find the lock taken and do nothing.

-- Delete what is past its time: by ttl and retention, and what every group has completed long enough ago.
-- At most p_most messages; gives what was deleted, by queue.
create or replace function queen.expire(p_most integer, p_now timestamptz default null)
returns table (queue_name text, deleted bigint) language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_left integer := p_most;
    v_deleted integer;
    q queen.queues;
    p record;
begin
    if not pg_try_advisory_xact_lock(72004, 1) then
        return;
    end if;
    for q in
        select * from queen.queues x
        where x.horizon_seconds is not null or (x.retention_enabled and x.completed_retention_seconds > 0)
        order by random()
    loop
        deleted := 0;
        for p in
            select part.id,
                greatest(
                    case when first.created_at <= v_now - make_interval(secs => q.horizon_seconds)
                         then queen.id_before(part.id, v_now - make_interval(secs => q.horizon_seconds)
                                              + interval '1 microsecond') end,
                    case when q.retention_enabled and q.completed_retention_seconds > 0
                              and first.id <= done.acked_id
                              and first.created_at <= v_now - make_interval(secs => q.completed_retention_seconds)
                         then least(done.acked_id, queen.id_before(part.id,
                              v_now - make_interval(secs => q.completed_retention_seconds)
                              + interval '1 microsecond')) end
                ) as last_id,
                held.acked_id as held_after
            from queen.partitions part
            cross join lateral (
                select m.id, m.created_at from queen.messages m
                where m.partition_id = part.id order by m.id limit 1) first
            left join lateral (
                select min(c.acked_id) as acked_id from queen.cursors c where c.partition_id = part.id) done on true
            left join lateral (
                -- what a live lease has out is not taken away under the consumer's hands
                select min(c.acked_id) as acked_id from queen.cursors c
                where c.partition_id = part.id and c.lease_id is not null and c.ready_at > v_now) held on true
            where part.queue_id = q.id
              and first.created_at <= v_now - make_interval(secs => least(
                  q.horizon_seconds,
                  case when q.retention_enabled then nullif(q.completed_retention_seconds, 0) end))
        loop
            continue when p.last_id is null;
            v_deleted := queen.trim(p.id, least(p.last_id, coalesce(p.held_after, p.last_id)), v_left);
            deleted := deleted + v_deleted;
            v_left := v_left - v_deleted;
            exit when v_left <= 0;
        end loop;
        if deleted > 0 then
            queue_name := q.name;
            return next;
        end if;
        exit when v_left <= 0;
    end loop;
end $$;

-- Delete a partition's messages up to an id, at most p_most. The last one goes only while nobody pushes:
-- its seq must be kept first.
create or replace function queen.trim(p_partition bigint, p_last bigint, p_most integer) returns integer
language plpgsql as $$
declare
    v_tail record;
    v_deleted integer;
begin
    select m.id, m.seq into v_tail from queen.messages m
    where m.partition_id = p_partition order by m.id desc limit 1;
    if v_tail.id <= p_last then
        if pg_try_advisory_xact_lock(72002, (p_partition % 1024)::integer) then
            select m.id, m.seq into v_tail from queen.messages m
            where m.partition_id = p_partition order by m.id desc limit 1;
            update queen.partitions set base_seq = greatest(base_seq, v_tail.seq) where id = p_partition;
        else
            p_last := v_tail.id - 1;
        end if;
    end if;
    delete from queen.messages m
    where m.partition_id = p_partition and m.id in (
        select x.id from queen.messages x
        where x.partition_id = p_partition and x.id <= p_last order by x.id limit p_most);
    get diagnostics v_deleted = row_count;
    return v_deleted;
end $$;

-- maxWaitTimeSeconds for groups that nobody pops for: their messages go to the dead letters all the same.
create or replace function queen.bury_overdue(p_most integer, p_now timestamptz default null) returns integer
language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_done integer := 0;
    c queen.cursors;
    q queen.queues;
    g queen.groups;
begin
    if not pg_try_advisory_xact_lock(72004, 2) then
        return 0;
    end if;
    for c in
        select x.* from queen.queues w
        join queen.groups k on k.queue_id = w.id
        join queen.partitions p on p.queue_id = w.id
        join queen.cursors x on x.partition_id = p.id and x.group_id = k.id
        where w.max_wait_time_seconds > 0 and x.ready_at is not null and x.lease_id is null
          and exists (
              select from queen.messages m
              where m.partition_id = x.partition_id and m.id > x.acked_id
                and (m.group_id is null or m.group_id = x.group_id)
                and m.created_at <= v_now - make_interval(secs => w.max_wait_time_seconds)
                and not exists (
                    select from queen.deliveries d
                    where d.partition_id = x.partition_id and d.group_id = x.group_id
                      and d.message_id = m.id and d.dead))
        limit p_most for update of x skip locked
    loop
        select * into g from queen.groups where id = c.group_id;
        select * into q from queen.queues where id = g.queue_id;
        c := queen.bury_waiting(c, q, g, v_now);
        c := queen.settle(c, q, g, v_now);
        update queen.cursors x
        set ready_at = c.ready_at, acked_id = c.acked_id, acked_seq = c.acked_seq, exceptions = c.exceptions
        where x.partition_id = c.partition_id and x.group_id = c.group_id;
        v_done := v_done + 1;
    end loop;
    return v_done;
end $$;
