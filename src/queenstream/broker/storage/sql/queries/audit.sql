-- name: note_act
-- With $9, not if it only repeats what was done last to the same target.
insert into queen.audit (at, subject, role, address, forwarded_for, action, target, details)
select coalesce($8::timestamptz, clock_timestamp()), $1, $2, $3, $4, $5::text, $6::text, $7::bytea
where not $9::boolean or not exists (
    select from (
        select a.action, a.details, a.subject from queen.audit a where a.target = $6 order by a.id desc limit 1) last
    where last.action = $5 and last.details = $7 and last.subject is not distinct from $1);

-- name: list_acts
-- The newest first, before an id.
select a.id::text, a.at, a.subject, a.role, a.address, a.forwarded_for, a.action, a.target, a.details
from queen.audit a
where ($1::bigint is null or a.id < $1) and ($2::text is null or a.subject = $2) and ($3::text is null or a.action = $3)
  and ($4::text is null or strpos(lower(a.target), lower($4)) > 0)
  and ($5::timestamptz is null or a.at >= $5) and ($6::timestamptz is null or a.at <= $6)
order by a.id desc limit $7::integer;

-- name: forget_acts
-- What is past its time, and what is more than so many.
with gone as (
    delete from queen.audit a
    where a.id = any (array(
        (select x.id from queen.audit x
         where x.at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
         order by x.at limit $1)
        union
        (select x.id from queen.audit x
         where x.id <= (select y.id from queen.audit y order by y.id desc offset $4::bigint limit 1)
         order by x.id limit $1)))
    returning 1)
select count(*)::integer as done from gone;
