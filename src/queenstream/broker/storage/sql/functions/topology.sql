-- Queues, partitions and groups come into being here; both make cursors, so both hold the queue alone.

-- The queue (made with defaults if it is missing) and the ids of the partitions named, made if missing.
create or replace function queen.ensure_partitions(
    p_queue text, p_names text[],
    out queue_id integer, out made_queue boolean, out partition_ids bigint[]
) language plpgsql as $$
begin
    made_queue := false;
    select q.id into queue_id from queen.queues q where q.name = p_queue;
    if not found then
        insert into queen.queues (name) values (p_queue)
        on conflict (name) do nothing returning id into queue_id;
        made_queue := found;
        if not found then
            select q.id into queue_id from queen.queues q where q.name = p_queue;
        end if;
    end if;

    partition_ids := queen.partition_ids(queue_id, p_names);
    if array_position(partition_ids, null) is null then
        return;
    end if;

    perform pg_advisory_xact_lock(72001, queue_id);
    if not exists (select from queen.queues q where q.id = queue_id) then
        raise exception 'queue % was deleted meanwhile', p_queue using errcode = 'QS002';
    end if;
    with made as (
        insert into queen.partitions (queue_id, name)
        select queue_id, n from unnest(p_names) n
        on conflict on constraint partitions_queue_id_name_key do nothing
        returning id
    )
    insert into queen.cursors (partition_id, group_id, queue_id, acked_id, eager)
    select made.id, g.id, g.queue_id, g.start_id, g.stream_id is not null
    from made
    cross join (select queue_id as id) of_queue
    join queen.groups g on g.queue_id = of_queue.id and g.active;
    partition_ids := queen.partition_ids(queue_id, p_names);
end $$;

create or replace function queen.partition_ids(p_queue integer, p_names text[]) returns bigint[]
language sql stable as $$
    select array(
        select (select p.id from queen.partitions p where p.queue_id = p_queue and p.name = n)
        from unnest(p_names) with ordinality as names (n, at) order by at)
$$;

-- The group, made if missing; what it said first about its subscription stays.
-- p_start: the last id that was drawn when the group asked first, before the queue existed.
create or replace function queen.ensure_group(
    p_queue integer, p_name text, p_mode text, p_from timestamptz,
    p_start bigint default null, p_now timestamptz default null, p_stream integer default null
) returns integer language plpgsql as $$
declare
    g queen.groups;
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_start bigint;
begin
    select * into g from queen.groups where queue_id = p_queue and name = p_name;
    if found and g.active then
        return g.id;
    end if;

    perform pg_advisory_xact_lock(72001, p_queue);
    select * into g from queen.groups where queue_id = p_queue and name = p_name;
    if found and g.active then
        return g.id;
    end if;
    if not exists (select from queen.queues where id = p_queue) then
        return null;
    end if;
    if g.id is null then
        delete from queen.first_pops f using queen.queues q
        where q.id = p_queue and f.queue_name = q.name and f.group_name = p_name
        returning f.start_id into v_start;
        insert into queen.groups (queue_id, name, subscription_mode, subscription_from, stream_id, start_id)
        values (p_queue, p_name, p_mode, p_from, p_stream,
                case when p_mode = 'new' then coalesce(v_start, p_start, queen.last_id()) else 0 end)
        returning * into g;
    else
        update queen.groups set active = true where id = g.id;
    end if;

    insert into queen.cursors (partition_id, group_id, queue_id, eager, acked_id, acked_seq, ready_at)
    select p.id, g.id, p_queue, g.stream_id is not null, start.id, coalesce(
            (select m.seq from queen.messages m
             where m.partition_id = p.id and m.id <= start.id order by m.id desc limit 1), 0),
        case when exists (select from queen.messages m where m.partition_id = p.id and m.id > start.id)
             then v_now end
    from queen.partitions p
    cross join lateral (
        select greatest(g.start_id,
            case when g.subscription_from is null then 0
                 else queen.id_before(p.id, g.subscription_from) end) as id
    ) start
    where p.queue_id = p_queue;
    return g.id;
end $$;

-- A group asks for what is new in a queue that does not exist yet: everything from now on is.
create or replace function queen.first_pop(p_queue text, p_group text) returns bigint language plpgsql as $$
declare
    v_start bigint;
begin
    select start_id into v_start from queen.first_pops where queue_name = p_queue and group_name = p_group;
    if not found then
        insert into queen.first_pops (queue_name, group_name, start_id)
        values (p_queue, p_group, queen.last_id()) on conflict do nothing;
        select start_id into v_start from queen.first_pops where queue_name = p_queue and group_name = p_group;
    end if;
    return v_start;
end $$;

-- The last id that can have been drawn so far. (A sequence nobody has used yet says 1 as well.)
create or replace function queen.last_id() returns bigint language sql volatile as $$
    select ((last_value - (not is_called)::integer) << 16) + 65535 from queen.batches
$$;

-- The id of the last message of a partition older than a time; 0 if there is none. Answered from the ends,
-- by a short scan, or (created_at rises with the id) by halving.
create or replace function queen.id_before(p_partition bigint, p_at timestamptz) returns bigint
language plpgsql stable as $$
declare
    v_first record;
    v_last record;
    v_low bigint;                -- everything up to here is older
    v_high bigint;               -- nothing from here on is
    v_id bigint;
    v_created timestamptz;
begin
    select m.id, m.seq, m.created_at into v_first from queen.messages m
    where m.partition_id = p_partition order by m.id limit 1;
    if not found or v_first.created_at >= p_at then
        return 0;
    end if;
    select m.id, m.seq, m.created_at into v_last from queen.messages m
    where m.partition_id = p_partition order by m.id desc limit 1;
    if v_last.created_at < p_at then
        return v_last.id;
    end if;
    v_low := v_first.id;
    v_high := v_last.id;
    while v_high - v_low > 1 and v_last.seq - v_first.seq > 500 loop
        select m.id, m.created_at into v_id, v_created from queen.messages m
        where m.partition_id = p_partition and m.id <= v_low + (v_high - v_low) / 2
        order by m.id desc limit 1;
        if v_created < p_at then
            v_low := v_low + (v_high - v_low) / 2;
        else
            v_high := v_id;
        end if;
    end loop;
    -- What is left between the two is short: step down from the top.
    select m.id into v_id from queen.messages m
    where m.partition_id = p_partition and m.id >= v_first.id and m.id < v_high and m.created_at < p_at
    order by m.id desc limit 1;
    return v_id;
end $$;

-- Move a group in a queue, or in one partition of it: to the end, or to the first message not older than p_at.
-- Leases that are out become void. Gives the number of partitions moved.
create or replace function queen.seek(
    p_group integer, p_partition bigint, p_at timestamptz, p_now timestamptz default null, p_id bigint default null
) returns integer language plpgsql as $$
declare
    g queen.groups;
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_moved integer;
begin
    select * into g from queen.groups where id = p_group;
    perform pg_advisory_xact_lock(72001, g.queue_id);
    delete from queen.deliveries d using queen.partitions p
    where p.queue_id = g.queue_id and (p_partition is null or p.id = p_partition)
      and d.partition_id = p.id and d.group_id = p_group;
    with target as materialized (
        select c.partition_id,
            case when p_id is not null then p_id - 1
                 when p_at is null
                 then coalesce((select m.id from queen.messages m where m.partition_id = c.partition_id
                                order by m.id desc limit 1), c.acked_id)
                 else queen.id_before(c.partition_id, p_at) end as id
        from queen.partitions p
        join queen.cursors c on c.partition_id = p.id and c.group_id = p_group
        where p.queue_id = g.queue_id and (p_partition is null or p.id = p_partition)
    )
    update queen.cursors c
    set acked_id = target.id,
        acked_seq = coalesce(
            (select m.seq from queen.messages m
             where m.partition_id = c.partition_id and m.id <= target.id order by m.id desc limit 1), 0),
        ready_at = case when exists (
            select from queen.messages m where m.partition_id = c.partition_id and m.id > target.id) then v_now end,
        lease_id = null, lease_to = null, lease_to_seq = null, lease_count = null, leased_at = null,
        last_lease_id = null, exceptions = false
    from target
    where c.partition_id = target.partition_id and c.group_id = p_group;
    get diagnostics v_moved = row_count;
    -- An older start than the subscription's is what the user asks for now.
    if p_at is not null then
        update queen.groups set subscription_from = null
        where id = p_group and subscription_from > p_at;
    end if;
    return v_moved;
end $$;

-- Empty a queue, or one partition of it; partitions, groups and options stay. Gives the number of messages deleted.
create or replace function queen.clear(p_queue integer, p_partition bigint default null) returns bigint
language plpgsql as $$
declare
    v_partitions bigint[];
    v_deleted bigint;
begin
    perform pg_advisory_xact_lock(72001, p_queue);
    v_partitions := array(
        select id from queen.partitions where queue_id = p_queue and (p_partition is null or id = p_partition));
    update queen.partitions p set base_seq = last.seq
    from (
        select t.id, m.seq from unnest(v_partitions) as t (id)
        cross join lateral (
            select m.seq from queen.messages m where m.partition_id = t.id order by m.id desc limit 1) m
    ) last
    where p.id = last.id;
    delete from queen.deliveries where partition_id = any (v_partitions);
    delete from queen.messages where partition_id = any (v_partitions);
    get diagnostics v_deleted = row_count;
    update queen.cursors c
    set acked_seq = p.base_seq, ready_at = null, lease_id = null, lease_to = null, lease_to_seq = null,
        lease_count = null, leased_at = null, last_lease_id = null, exceptions = false
    from queen.partitions p
    where p.id = any (v_partitions) and c.partition_id = p.id;
    return v_deleted;
end $$;

-- Delete a queue and all that hangs on it. Gives whether it existed.
create or replace function queen.delete_queue(p_name text) returns boolean language plpgsql as $$
declare
    v_queue integer;
begin
    select id into v_queue from queen.queues where name = p_name;
    if not found then
        return false;
    end if;
    perform pg_advisory_xact_lock(72001, v_queue);
    delete from queen.cursors c using queen.partitions p where p.queue_id = v_queue and c.partition_id = p.id;
    delete from queen.deliveries d using queen.partitions p where p.queue_id = v_queue and d.partition_id = p.id;
    delete from queen.traces t using queen.partitions p where p.queue_id = v_queue and t.partition_id = p.id;
    delete from queen.messages m using queen.partitions p where p.queue_id = v_queue and m.partition_id = p.id;
    delete from queen.sink_checkpoints where queue = p_name;
    delete from queen.queues where id = v_queue;
    return found;
end $$;
