-- What Spark's data source asks (engines/spark/datasource): how far a queue can be read, where to cut it, and how a
-- batch is stored exactly once.
--
-- Functions in this folder keep their names, arguments and results from release to release: programs of another release
-- call them. One that must change gets another name, and the old one stays for a release.

-- An id up to which every message of the queue is committed and seen by who looks from now on; null if a push that may
-- hold a lower id stayed open for p_seconds. A push has the queue's lock before it draws its ids and holds it to the
-- commit. So if nobody has it, the last id drawn is such an id; otherwise it is one as soon as those are gone that have
-- the lock now. Nobody waits for us. Not for the middle of a transaction: it may leave the queue's lock there.
create or replace function queen.committed_to(p_queue integer, p_seconds double precision default 0.2) returns bigint
language plpgsql set search_path = pg_catalog as $$
declare
    v_last bigint;
    v_under_way text[];
    v_until timestamptz := clock_timestamp() + make_interval(secs => p_seconds);
begin
    if pg_try_advisory_xact_lock(72001, p_queue) then
        return queen.last_id();
    end if;
    v_last := queen.last_id();
    v_under_way := array(select x from queen.holders(p_queue) x);
    while exists (select from queen.holders(p_queue) x where x = any (v_under_way)) loop
        if clock_timestamp() > v_until then
            return null;
        end if;
        perform pg_sleep(0.002);
    end loop;
    return v_last;
end $$;

-- The transactions that hold a queue's lock.
create or replace function queen.holders(p_queue integer) returns setof text
language sql volatile as $$
    select l.virtualtransaction from pg_locks l
    where l.locktype = 'advisory' and l.classid = 72001 and l.objid = p_queue::oid and l.objsubid = 2 and l.granted
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
$$;

-- The partitions of a queue that have messages after one id, up to another, and how many: seq counts without gaps, so
-- two looks into an index are enough. A message that was deleted by hand still counts.
create or replace function queen.span(p_queue integer, p_after bigint, p_upto bigint)
returns table (partition_id bigint, first_id bigint, last_id bigint, messages bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select p.id, first.id, last.id, last.seq - first.seq + 1
    from queen.partitions p
    cross join lateral (
        select m.id, m.seq from queen.messages m
        where m.partition_id = p.id and m.id > p_after and m.id <= p_upto order by m.id desc limit 1) last
    cross join lateral (
        select m.id, m.seq from queen.messages m
        where m.partition_id = p.id and m.id > p_after and m.id <= p_upto order by m.id limit 1) first
    where p.queue_id = p_queue
    order by p.id
$$;

-- The id up to which these partitions have at most p_rows messages after p_after: about as many, and at least one. What
-- lies between two ids is found by looking where it should be if messages came evenly, and by halving.
create or replace function queen.id_after(p_partitions bigint[], p_after bigint, p_upto bigint, p_rows bigint)
returns bigint language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_enough constant double precision := 0.95;
    v_before bigint[];                  -- the seq before the first message, for each partition
    v_low bigint := p_after;            -- up to here there are v_low_rows, not too many
    v_low_rows bigint := 0;
    v_high bigint := p_upto;            -- up to here there are v_high_rows, too many
    v_high_rows bigint;
    v_id bigint := p_upto;
    v_rows bigint;
    v_halve boolean := false;
begin
    v_before := array(
        select (select m.seq - 1 from queen.messages m
                where m.partition_id = t.id and m.id > p_after order by m.id limit 1)
        from unnest(p_partitions) with ordinality as t (id, n) order by n);
    loop
        select coalesce(sum(last.seq - t.before), 0) into v_rows
        from unnest(p_partitions, v_before) as t (id, before)
        cross join lateral (
            select m.seq from queen.messages m
            where m.partition_id = t.id and m.id > p_after and m.id <= v_id order by m.id desc limit 1) last;
        if v_rows <= p_rows then
            v_low := v_id;
            v_low_rows := v_rows;
        else
            v_high := v_id;
            v_high_rows := v_rows;
        end if;
        exit when v_high_rows is null or v_high - v_low <= 1 or v_low_rows >= p_rows * v_enough;
        v_id := v_low + case
            when v_halve then (v_high - v_low) / 2
            else ((v_high - v_low) * ((p_rows - v_low_rows)::numeric / (v_high_rows - v_low_rows)))::bigint end;
        v_id := least(greatest(v_id, v_low + 1), v_high - 1);
        v_halve := not v_halve;
    end loop;
    return case when v_low_rows > 0 then v_low else v_high end;
end $$;

-- The id before the first message of a queue that is not older than a time; null if there is none yet.
create or replace function queen.queue_id_before(p_queue integer, p_at timestamptz) returns bigint
language plpgsql stable as $$
begin
    return min(m.id) - 1
    from queen.partitions p
    cross join lateral (
        select m.id from queen.messages m
        where m.partition_id = p.id and m.id > queen.id_before(p.id, p_at) order by m.id limit 1) m
    where p.queue_id = p_queue;
end $$;

-- A query that reads as a group is done with everything up to an id: the group's cursors say so. It shows in the group's
-- lag, and retention of completed messages goes by it.
create or replace function queen.note_progress(p_queue integer, p_group text, p_upto bigint) returns void
language plpgsql as $$
declare
    v_group integer := queen.ensure_group(p_queue, p_group, 'all', null);
begin
    update queen.cursors c set acked_id = last.id, acked_seq = last.seq, acked_at = clock_timestamp()
    from queen.partitions p
    cross join lateral (
        select m.id, m.seq from queen.messages m
        where m.partition_id = p.id and m.id <= p_upto order by m.id desc limit 1) last
    where p.queue_id = p_queue and c.partition_id = p.id and c.group_id = v_group and c.acked_id < last.id;
end $$;

-- The partitions that staged messages go to, made where they are missing: in a transaction of its own, because who makes
-- one holds the queue alone to the commit.
create or replace function queen.prepare_staged(p_queue text, p_attempts text[]) returns void language plpgsql as $$
declare
    v_names text[] := array(
        select distinct name from queen.staged s, unnest(s.partitions) name where s.attempt = any (p_attempts));
begin
    perform queen.ensure_partitions(p_queue, v_names);
end $$;

-- A run takes a sink over: from then on the batches of runs before it are refused. p_token tells this run from others with
-- the same epoch, which there are when a checkpoint was copied.
-- Failures: QS013 another run owns the sink.
create or replace function queen.claim_sink(
    p_sink text, p_epoch bigint, p_token text, p_name text, p_temporary boolean
) returns void language plpgsql set search_path = pg_catalog as $$
declare
    s queen.sinks;
begin
    insert into queen.sinks (sink, temporary) values (p_sink, p_temporary) on conflict do nothing;
    select * into s from queen.sinks x where x.sink = p_sink for update;
    if s.owner_epoch > p_epoch or (s.owner_epoch = p_epoch and s.owner_token <> p_token) then
        raise exception '%', s.owner_name using errcode = 'QS013';
    end if;
    update queen.sinks x set owner_epoch = p_epoch, owner_token = p_token, owner_name = p_name where x.sink = p_sink;
end $$;

-- Store what the winning attempts of a batch have staged, in the order of the attempts, by the broker's own push. p_once:
-- the batch is noted under its sink, in the same transaction; if it was noted before, nothing is stored. p_token: of the
-- run that claimed the sink; empty for a sink that nobody claims.
-- Failures: QS010 what was staged is not there any more, QS011 the queue cannot be written to, QS012 it is full, QS013
-- another run owns the sink, QS014 the batch is older than what is stored.
create or replace function queen.commit_batch(
    p_sink text, p_token text, p_batch bigint, p_queue text, p_attempts text[], p_messages bigint[], p_once boolean,
    out stored bigint, out duplicates bigint, out repeated boolean
) language plpgsql
set search_path = pg_catalog set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan as $$
declare
    v_kept constant integer := 100;     -- batches that Spark itself keeps
    v_sink queen.sinks;
    v_missing text;
    v_partitions bigint[];
    v_lock integer;
    v_looking boolean := false;         -- for repeated transactions: once there was one, from the start
    q queen.queues;
    s queen.staged;
    v_pushed record;
begin
    stored := 0;
    duplicates := 0;
    repeated := false;
    if p_once then
        insert into queen.sinks (sink) values (p_sink) on conflict do nothing;
        select * into v_sink from queen.sinks x where x.sink = p_sink for update;
        if v_sink.owner_token <> p_token then
            raise exception '%', v_sink.owner_name using errcode = 'QS013';
        end if;
        repeated := exists (select from queen.sink_batches x where x.sink = p_sink and x.batch_id = p_batch);
        if not repeated and p_batch <= v_sink.last_batch then
            raise exception 'batch % of sink % comes after batch %, which is stored', p_batch, p_sink, v_sink.last_batch
                using errcode = 'QS014';
        end if;
    end if;
    if p_once and not repeated then
        insert into queen.sink_batches (sink, batch_id, messages)
        values (p_sink, p_batch, (select sum(x) from unnest(p_messages) x));
        update queen.sinks x set last_batch = p_batch, committed_at = clock_timestamp() where x.sink = p_sink;
    end if;
    if not repeated then
        select t.attempt into v_missing from unnest(p_attempts, p_messages) as t (attempt, messages)
        where t.messages <> (
            select coalesce(sum(cardinality(x.transactions)), 0) from queen.staged x where x.attempt = t.attempt)
        limit 1;
        if v_missing is not null then
            raise exception 'what task attempt % had staged is gone', v_missing using errcode = 'QS010';
        end if;

        select * into q from queen.queues x where x.name = p_queue;
        perform pg_advisory_xact_lock_shared(72001, q.id);
        select * into q from queen.queues x where x.id = q.id;     -- as it stays from here on
        if q.encryption_enabled or q.stream_id is not null then
            raise exception 'queue % %', p_queue,
                case when q.encryption_enabled then 'is encrypted' else 'belongs to a stream' end using errcode = 'QS011';
        end if;
        -- All locks at once, in the order of every push.
        for v_lock in
            select distinct (queen.partition_ids(q.id, array[name]))[1] % 1024
            from queen.staged x, unnest(x.partitions) name where x.attempt = any (p_attempts) order by 1
        loop
            perform pg_advisory_xact_lock(72002, v_lock);
        end loop;

        for s in
            select x.* from unnest(p_attempts) with ordinality as t (attempt, n)
            join queen.staged x on x.attempt = t.attempt order by t.n, x.chunk
        loop
            v_partitions := queen.partition_ids(q.id, s.partitions);
            if q.id is null or array_position(v_partitions, null) is not null then
                raise exception 'queue % was deleted meanwhile', p_queue using errcode = 'QS002';
            end if;
            select * into v_pushed from queen.push(
                array[q.id], array[q.version],
                array(select distinct p % 1024 from unnest(v_partitions) p order by 1)::integer[],
                v_partitions,
                array(select coalesce(sum(count) over (order by n rows between unbounded preceding and 1 preceding), 0)
                      from unnest(s.counts) with ordinality as t (count, n) order by n)::integer[],
                array(select n from unnest(s.counts) with ordinality as t (count, n), generate_series(1, count)
                      order by n)::integer[],
                s.transactions, s.payloads || ''::bytea, s.ends, s.traces, null, null, 1, v_looking, null, null, null);
            if v_pushed.status = 'full' then
                raise exception 'queue % is full (maxSize)', p_queue using errcode = 'QS012';
            elsif v_pushed.status <> 'ok' then
                raise exception 'queue % changed meanwhile', p_queue using errcode = 'QS002';
            end if;
            v_looking := v_looking or v_pushed.duplicate_rows is not null;
            duplicates := duplicates + coalesce(cardinality(v_pushed.duplicate_rows), 0);
            stored := stored + cardinality(s.transactions) - coalesce(cardinality(v_pushed.duplicate_rows), 0);
        end loop;
    end if;

    -- Attempts that lost and batches that were given up. What nobody came back for is the brokers' upkeep's.
    delete from queen.staged x where x.sink = p_sink and x.batch_id <= p_batch;
    delete from queen.sink_batches x where x.sink = p_sink and x.batch_id <= p_batch - v_kept;
    if stored + duplicates > 0 then
        insert into queen.queue_stats as x (queue_id, minute, pushed, duplicates)
        values (q.id, date_trunc('minute', clock_timestamp()), commit_batch.stored, commit_batch.duplicates)
        on conflict on constraint queue_stats_pkey do update
        set pushed = x.pushed + excluded.pushed, duplicates = x.duplicates + excluded.duplicates;
    end if;
end $$;

-- What programs of the release before call: a sink without an owner.
create or replace function queen.commit_staged(
    p_sink text, p_batch bigint, p_queue text, p_attempts text[], p_messages bigint[], p_once boolean,
    out stored bigint, out duplicates bigint, out repeated boolean
) language sql set search_path = pg_catalog as $$
    select * from queen.commit_batch(p_sink, '', p_batch, p_queue, p_attempts, p_messages, p_once)
$$;
