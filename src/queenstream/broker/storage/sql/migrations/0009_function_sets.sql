-- compatible from: 7

-- Which sets of functions there are: each release has its own, so that brokers of two releases run side by side.
create table queen.function_sets (
    name text primary key,                  -- what the names of its functions end with; '': those of before there were sets
    version text not null,                  -- the release that installed it
    schema integer not null,                -- the newest migration that this release knows
    interface boolean not null default false,  -- the functions with plain names are this release's
    used_at timestamptz not null default clock_timestamp()
);
insert into queen.function_sets (name, version, schema) values ('', '', 0);

-- Null: a broker of before there were sets.
alter table queen.brokers add column function_set text;

-- The oldest schema that a broker must know to work with this one; null: this one.
alter table queen.migrations add column compatible_from integer;
