-- Make a set of rules, or replace one. p_expected: the version that it must have still, 0 for none at all.
-- Gives 'stored'; 'same', if it says that already; 'changed', if it has another version; 'full', if there are too many.
create or replace function queen.apply_rules(
    p_name text, p_definition bytea, p_expected bigint, p_most integer, p_now timestamptz,
    out outcome text, out version bigint, out changed_at timestamptz
) language plpgsql as $$
declare
    v_known queen.rule_sets;
begin
    lock table queen.rule_sets in share row exclusive mode;  -- one at a time; who reads does not wait
    select * into v_known from queen.rule_sets r where r.name = p_name;
    version := v_known.version;
    changed_at := v_known.changed_at;
    outcome := case
        when p_expected <> coalesce(v_known.version, 0) then 'changed'
        when v_known.definition = p_definition then 'same'
        when v_known.name is null and (select count(*) from queen.rule_sets) >= p_most then 'full'
        else 'stored' end;
    if outcome = 'stored' then
        version := nextval('queen.rule_versions');
        changed_at := coalesce(p_now, clock_timestamp());
        insert into queen.rule_sets values (p_name, version, p_definition, changed_at)
        on conflict (name) do update set
            version = excluded.version, definition = excluded.definition, changed_at = excluded.changed_at;
    end if;
end $$;
