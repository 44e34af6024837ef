-- Upkeep, in small steps. One broker at a time does it; the others find the lock taken and do nothing.

-- Delete what is past its time: by ttl and retention, and what every group has completed long enough ago.
-- At most p_most messages, and no partition is begun after p_seconds: what waits for a lock of this step waits
-- no longer. Gives what was deleted, by queue, and whether there is more to do.
create or replace function queen.expire(
    p_most integer, p_now timestamptz default null, p_seconds double precision default 0.05
) returns table (queue_name text, deleted bigint, more boolean) language plpgsql set enable_seqscan = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_most_partitions constant integer := 1000;
    v_until timestamptz;
    v_left integer := p_most;
    v_more boolean := false;
    v_mine boolean;
    v_deleted integer;
    v_queues integer[] := '{}';         -- one element for each partition that is due
    v_partitions bigint[] := '{}';
    v_expired bigint[] := '{}';
    v_completed bigint[] := '{}';
    v_counts jsonb := '{}';             -- queue id: deleted
    v_due record;
    q queen.queues;
begin
    if not pg_try_advisory_xact_lock(72004, 1) then
        return;
    end if;

    -- First look, without a lock; a queue's turn is by chance, so that none is always the last.
    for q in
        select * from queen.queues x
        where x.horizon_seconds is not null or (x.retention_enabled and x.completed_retention_seconds > 0)
        order by random()
    loop
        select array_agg(due.id) as ids, array_agg(due.expired) as expired, array_agg(due.completed) as completed
        into v_due
        from (
            select part.id,
                case when first.created_at <= expires.before
                     then queen.id_before(part.id, expires.before + interval '1 microsecond') end as expired,
                case when first.created_at <= completes.before and first.id <= known.acked_id
                     then queen.id_before(part.id, completes.before + interval '1 microsecond') end as completed
            from (select v_now - make_interval(secs => q.horizon_seconds) as before) expires
            cross join (
                select v_now - make_interval(secs => case when q.retention_enabled
                    then nullif(q.completed_retention_seconds, 0) end) as before) completes
            cross join queen.partitions part
            cross join lateral (
                select m.id, m.created_at from queen.messages m
                where m.partition_id = part.id order by m.id limit 1) first
            left join lateral (
                select min(c.acked_id) as acked_id,
                    min(c.acked_id) filter (where c.lease_id is not null and c.ready_at > v_now) as held_after,
                    coalesce(bool_or(c.eager), false) as read_by_stream
                from queen.cursors c where c.partition_id = part.id) known on true
            where part.queue_id = q.id
              and first.created_at <= greatest(expires.before, completes.before)
              and (first.created_at <= expires.before or first.id <= known.acked_id)
              and (known.held_after is null or known.held_after >= first.id)
              and (not known.read_by_stream or queen.stream_hold(part.id, first.id, v_now) >= first.id)
            limit v_most_partitions - cardinality(v_partitions)
        ) due;
        if v_due.ids is not null then
            v_queues := v_queues || array_fill(q.id, array[cardinality(v_due.ids)]);
            v_partitions := v_partitions || v_due.ids;
            v_expired := v_expired || v_due.expired;
            v_completed := v_completed || v_due.completed;
        end if;
        v_more := cardinality(v_partitions) >= v_most_partitions;
        exit when v_more;
    end loop;

    v_until := clock_timestamp() + make_interval(secs => p_seconds);
    for i in 1 .. cardinality(v_partitions) loop
        if v_left <= 0 or clock_timestamp() > v_until then
            v_more := true;
            exit;
        end if;
        -- As a push: meanwhile no group comes into being or is moved. What cannot be had now is had next time.
        if i = 1 or v_queues[i] <> v_queues[i - 1] then
            v_mine := pg_try_advisory_xact_lock_shared(72001, v_queues[i]);
        end if;
        continue when not v_mine;
        v_deleted := queen.trim(v_partitions[i], v_expired[i], v_completed[i], v_left, v_now);
        v_left := v_left - v_deleted;
        v_more := v_more or v_left <= 0;
        if v_deleted > 0 then
            v_counts := v_counts || jsonb_build_object(
                v_queues[i], coalesce((v_counts ->> v_queues[i]::text)::bigint, 0) + v_deleted);
        end if;
    end loop;
    return query
        select x.name, counted.value::bigint, v_more
        from jsonb_each_text(v_counts) counted
        join queen.queues x on x.id = counted.key::integer;
end $$;

-- Delete a partition's messages, at most p_most: up to p_expired whoever has yet to see them, and up to p_completed
-- as far as every group is done with them; but nothing that a live lease has out. The caller holds (72001, queue),
-- so no cursor comes into being or moves back. Waits for no cursor.
create or replace function queen.trim(
    p_partition bigint, p_expired bigint, p_completed bigint, p_most integer, p_now timestamptz
) returns integer language plpgsql as $$
declare
    v_last bigint;
    v_free integer[];
    v_tail record;
    v_deleted integer;
    v_read boolean;                     -- by a stream
begin
    select greatest(p_expired, case when p_completed is not null then least(p_completed, min(c.acked_id)) end)
    into v_last
    from queen.cursors c where c.partition_id = p_partition having p_expired is not null or count(*) > 0;
    if v_last is null then
        return 0;
    end if;

    -- A cursor that has not passed the last one may have some of them out. A pop or ack under way has its row locked
    -- to the commit: it counts as a lease. Those that are free are locked, so that no pop begins there meanwhile.
    v_free := array(
        select c.group_id from queen.cursors c
        where c.partition_id = p_partition and c.acked_id < v_last
          and (c.lease_id is null or c.ready_at is null or c.ready_at <= p_now)
        for update skip locked);
    select least(v_last, min(c.acked_id)) into v_last
    from queen.cursors c where c.partition_id = p_partition and c.group_id <> all (v_free);

    v_read := exists (select from queen.cursors c where c.partition_id = p_partition and c.eager);
    if v_read then
        v_last := queen.stream_hold(p_partition, v_last, p_now);
    end if;

    -- The last message of all goes only while nobody pushes: its seq must be kept first.
    select m.id, m.seq into v_tail from queen.messages m
    where m.partition_id = p_partition order by m.id desc limit 1;
    if v_tail.id <= v_last then
        if pg_try_advisory_xact_lock(72002, (p_partition % 1024)::integer) then
            select m.id, m.seq into v_tail from queen.messages m
            where m.partition_id = p_partition order by m.id desc limit 1;
            update queen.partitions set base_seq = greatest(base_seq, v_tail.seq) where id = p_partition;
        else
            v_last := v_tail.id - 1;
        end if;
    end if;

    select coalesce(min(step.id), v_last) into v_last
    from (
        select m.id from queen.messages m
        where m.partition_id = p_partition and m.id <= v_last order by m.id offset p_most - 1 limit 1) step;
    delete from queen.messages m where m.partition_id = p_partition and m.id <= v_last;
    get diagnostics v_deleted = row_count;
    if v_read and v_deleted > 0 then
        perform queen.forget_parts(p_partition, v_last);
    end if;
    return v_deleted;
end $$;

-- Write the cursors anew when dead versions of them are many times the live ones. Vacuum cannot take them away
-- while any session of the server holds an old transaction, and each pop and push reads past them all.
-- outcome: null nothing to do, 'busy' the table could not be had now, 'done'. At most p_most live rows.
--
-- One transaction: whatever happens in the middle leaves the table as it was. Statements of ours that wait for the
-- table take their snapshot when they have it, and see the new rows. To a snapshot that is older than the rewrite and
-- comes to the table after it, the table is empty (TRUNCATE is not MVCC-safe). That can be a stable function of ours
-- that counts (depth, partition_counts): one count may be too high. Nobody else reads this table, except a dump; so
-- nothing is done while one is there. (Once it holds its locks we have no chance anyway.)
create or replace function queen.compact(
    p_most integer,
    out outcome text, out live integer, out pages_before bigint, out pages_after bigint, out seconds double precision
) language plpgsql as $$
declare
    v_page constant integer := current_setting('block_size')::integer;
    v_rows_per_page constant integer := 30;     -- at the table's fillfactor
    v_factor constant integer := 8;             -- about 20 versions of each row
    v_slack constant integer := 32;             -- about 2,500 versions
    v_started timestamptz;
    v_rows queen.cursors[];
    v_written integer;
begin
    -- Cheap signs first. The statistics may be late or lost, so what they suggest is counted.
    pages_before := pg_relation_size('queen.cursors') / v_page;
    if pages_before <= v_slack + v_factor * pg_stat_get_live_tuples('queen.cursors'::regclass) / v_rows_per_page then
        return;
    end if;
    -- An older snapshot than the lock would lose rows.
    if current_setting('transaction_isolation') <> 'read committed' or not pg_try_advisory_xact_lock(72004, 3) then
        return;
    end if;
    select count(*) into live from (select from queen.cursors limit p_most + 1) counted;
    if live > p_most or pages_before <= v_slack + v_factor * live / v_rows_per_page then
        return;
    end if;

    perform set_config('lock_timeout', '200ms', true);
    begin
        lock table queen.cursors in access exclusive mode;
    exception when lock_not_available then
        outcome := 'busy';
        return;
    end;
    v_started := clock_timestamp();
    if exists (
        select from pg_stat_activity a
        where a.datname = current_database() and a.application_name like 'pg\_dump%')
    then
        outcome := 'busy';
        return;
    end if;
    v_rows := array(select c from queen.cursors c);
    live := cardinality(v_rows);
    truncate queen.cursors;
    insert into queen.cursors select * from unnest(v_rows) as row order by row.partition_id, row.group_id;
    get diagnostics v_written = row_count;
    if v_written <> live then
        raise exception 'cursors: % of % rows were written', v_written, live;
    end if;
    pages_after := pg_relation_size('queen.cursors') / v_page;
    seconds := extract(epoch from clock_timestamp() - v_started);
    outcome := 'done';
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

-- Drop functions of releases that no broker has used for p_seconds: not ours (p_own), and not those behind the
-- functions with plain names (p_interface). Not while a broker starts: it may be of such a release.
create or replace function queen.forget_functions(
    p_most integer, p_own text, p_interface text[], p_seconds double precision
) returns integer language plpgsql as $$
declare
    v_function regprocedure;
    v_done integer := 0;
begin
    if not pg_try_advisory_xact_lock(72000) then
        return 0;
    end if;
    -- Brokers of before there were sets do not say which functions they use.
    update queen.function_sets s set used_at = old.seen_at
    from (select max(b.seen_at) as seen_at from queen.brokers b where b.function_set is null) old
    where s.name = '' and old.seen_at > s.used_at;
    for v_function in
        select p.oid from pg_proc p
        join queen.function_sets s on s.name = coalesce(substring(p.proname from '_([0-9a-f]{10})$'), '')
        where p.pronamespace = 'queen'::regnamespace and p.proname <> all (p_interface)
          and s.name <> p_own and not s.interface and s.used_at < clock_timestamp() - make_interval(secs => p_seconds)
        limit p_most
    loop
        execute format('drop function %s', v_function);
        v_done := v_done + 1;
    end loop;
    delete from queen.function_sets s
    where v_done < p_most and s.name not in ('', p_own) and not s.interface
      and s.used_at < clock_timestamp() - make_interval(secs => p_seconds);
    return v_done;
end $$;

-- Look at p_most partitions, from after p_after on, and delete those that have been empty for p_seconds: no messages,
-- dead letters, traces, leases or tries, and nobody has acknowledged anything in that time. What is deleted comes into
-- being again with the next push, and every group gets what is pushed then. Not for streams, nor for what they read.
-- last: where to go on; null: from the start.
create or replace function queen.forget_partitions(
    p_after bigint, p_most integer, p_seconds double precision, p_now timestamptz default null,
    out last bigint, out looked integer, out deleted integer, out queues text[]
) language plpgsql set enable_seqscan = off as $$
declare
    v_before timestamptz := coalesce(p_now, clock_timestamp()) - make_interval(secs => p_seconds);
    v_ids bigint[];
    v_queue integer;
    v_name text;
    v_gone bigint[];
begin
    deleted := 0;
    queues := '{}';
    v_ids := array(select p.id from queen.partitions p where p.id > p_after order by p.id limit p_most);
    looked := cardinality(v_ids);
    last := case when looked = p_most then v_ids[looked] end;
    for v_queue, v_name in
        select q.id, q.name from queen.queues q
        where q.id in (select p.queue_id from queen.partitions p where p.id = any (queen.empty_of(v_ids, v_before)))
          and q.stream_id is null
          and not exists (select from queen.stream_sources s where s.queue_id = q.id)
    loop
        -- Alone: no push, and no group comes into being. What cannot be had now is had next time.
        continue when not pg_try_advisory_xact_lock(72001, v_queue);
        -- Another statement, so that it sees what was committed before the lock was had.
        v_gone := array(
            select p.id from queen.partitions p
            where p.queue_id = v_queue and p.id = any (queen.empty_of(v_ids, v_before)));
        continue when cardinality(v_gone) = 0;
        delete from queen.cursors c where c.partition_id = any (v_gone);
        delete from queen.partitions p where p.id = any (v_gone);
        update queen.queues q set version = q.version + 1, pusher = null where q.id = v_queue;
        deleted := deleted + cardinality(v_gone);
        queues := queues || v_name;
    end loop;
end $$;

-- Those of these partitions that have been empty since a time. 'Default' stays: configure promises its id.
create or replace function queen.empty_of(p_ids bigint[], p_before timestamptz) returns bigint[]
language sql stable set enable_seqscan = off as $$
    select array(
        select p.id from queen.partitions p
        where p.id = any (p_ids) and p.created_at < p_before and p.name <> 'Default'
          and not exists (select from queen.messages m where m.partition_id = p.id)
          and not exists (select from queen.dead_letters d where d.partition_id = p.id)
          and not exists (select from queen.traces t where t.partition_id = p.id)
          and not exists (select from queen.deliveries d where d.partition_id = p.id)
          and not exists (select from queen.window_parts w where w.partition_id = p.id)
          and not exists (
              select from queen.cursors c
              where c.partition_id = p.id and (c.lease_id is not null or c.acked_at >= p_before or c.eager)))
$$;

-- Forget the progress of groups that have taken none of their messages for p_seconds, at most p_most: something was
-- ready for them all that time. Their subscription stays: who comes back gets all that is stored since then again.
create or replace function queen.forget_groups(
    p_most integer, p_seconds double precision, p_now timestamptz default null
) returns table (queue_name text, group_name text) language plpgsql as $$
#variable_conflict use_column
declare
    v_before timestamptz := coalesce(p_now, clock_timestamp()) - make_interval(secs => p_seconds);
    g queen.groups;
begin
    for g in
        select x.* from queen.groups x
        join queen.queues q on q.id = x.queue_id and q.stream_id is null
        where x.active and x.stream_id is null and x.created_at < v_before
          and exists (
              select from queen.cursors c
              where c.group_id = x.id and c.ready_at < v_before and c.lease_id is null
                and exists (
                    select from queen.messages m
                    where m.partition_id = c.partition_id and m.id > c.acked_id
                      and (m.group_id is null or m.group_id = x.id)))
          and not exists (
              select from queen.cursors c
              where c.group_id = x.id and (greatest(c.leased_at, c.acked_at) >= v_before
                  or (c.lease_id is not null and c.ready_at >= v_before)))
        limit p_most
    loop
        return query
            select d.queue_name, g.name from queen.delete_group(g.name, g.queue_id, false) d;
    end loop;
end $$;
