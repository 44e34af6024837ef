-- name: apply_rules
select outcome, version, changed_at from queen.apply_rules($1, $2, $3, $4, $5);

-- name: list_rules
select name, version, definition, changed_at from queen.rule_sets order by name limit $1 offset $2;

-- name: count_rules
select count(*) as total from queen.rule_sets;

-- name: show_rules
-- One set; without what it says, if the asker knows that version.
select name, version, changed_at, case when version <> $2 then definition end as definition
from queen.rule_sets where name = $1;

-- name: delete_rules
delete from queen.rule_sets where name = $1 returning version;
