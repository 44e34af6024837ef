-- Sets of rules that pipelines go by. The broker keeps them; what they mean is known to those who use them.

-- Over all sets, so that one which was deleted and made again has a higher version.
create sequence queen.rule_versions;

create table queen.rule_sets (
    name text collate "C" primary key,
    version bigint not null,
    definition bytea not null,                      -- JSON
    changed_at timestamptz not null
);
