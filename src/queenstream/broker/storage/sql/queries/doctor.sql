-- name: doctor_server
-- The folder is null for a role that may not see it.
select current_setting('server_version_num')::int as version_number, current_setting('server_version') as version,
    pg_is_in_recovery() as in_recovery, current_database()::text as database, current_user::text as "user",
    pg_backend_pid() as pid, (select s.setting from pg_settings s where s.name = 'data_directory') as data_directory;

-- name: doctor_clock
select extract(epoch from clock_timestamp())::float8 as seconds;

-- name: doctor_settings
-- As this session has them: what the database or the role sets over the server's file shows too.
select s.name, current_setting(s.name) as value, s.setting, s.unit, s.source, s.context, s.pending_restart,
    coalesce(s.enumvals, '{}') as choices
from pg_settings s where s.name = any ($1::text[]);

-- name: doctor_has_schema
select to_regclass('queen.migrations') is not null as found;

-- name: doctor_schema
select max(number) as number, exists (
    select from pg_proc where pronamespace = 'queen'::regnamespace and proname = 'push_' || $1) as has_functions,
    max(coalesce((to_jsonb(m) ->> 'compatible_from')::integer, number)) filter (where number > $2) as needed
from queen.migrations m;

-- name: doctor_checkpoints
-- PostgreSQL 17 or newer.
select num_timed as timed, num_requested as requested from pg_stat_checkpointer;

-- name: doctor_checkpoints_before_seventeen
select checkpoints_timed as timed, checkpoints_req as requested from pg_stat_bgwriter;

-- name: doctor_cache
select blks_hit as hits, blks_read as reads from pg_stat_database where datname = current_database();

-- name: doctor_connections
-- The sum is there for everybody; whose they are, only for pg_monitor and for one's own.
select (select sum(d.numbackends)::int from pg_stat_database d) as used,
    (select count(*)::int from pg_stat_activity a where a.application_name like 'queenstream%') as ours;

-- name: doctor_holders
-- What keeps vacuum from the dead rows of this database. No query texts: they may hold anything.
-- Vacuums hold nothing back. A transaction that has written counts without a snapshot too.
select 'backend' as kind, a.pid, null as name, a.application_name as application, a.usename::text as "user", a.state,
    extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
    greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions
from pg_stat_activity a
where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid()
  and (a.datname = current_database() or a.datname is null)
  and a.pid not in (select v.pid from pg_stat_progress_vacuum v)
union all
select 'prepared', null, p.gid, null, p.owner::text, 'prepared',
    extract(epoch from clock_timestamp() - p.prepared)::float8, age(p.transaction)
from pg_prepared_xacts p where p.database = current_database()
union all
select 'slot', s.active_pid, s.slot_name::text, null, null, case when s.active then 'active' else 'inactive' end,
    null, greatest(age(s.xmin), age(s.catalog_xmin))
from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
order by transactions desc, seconds desc nulls last limit 5;

-- name: doctor_tables
select t.relname::text as name, pg_total_relation_size(t.relid) as bytes, t.n_live_tup as live, t.n_dead_tup as dead,
    extract(epoch from clock_timestamp() - greatest(t.last_autovacuum, t.last_vacuum))::float8 as vacuumed_seconds
from pg_stat_user_tables t where t.schemaname = 'queen' and t.relname in ('messages', 'cursors')
order by t.relname desc;

-- name: doctor_wraparound
-- Of all databases: the oldest one stops them all.
select d.datname::text as database, greatest(age(d.datfrozenxid), mxid_age(d.datminmxid)) as age
from pg_database d order by age desc limit 1;

-- name: doctor_commit
-- A record in the log and nothing else: the commit waits for the disk, and no table is touched.
select pg_logical_emit_message(true, 'queen.doctor', '');
