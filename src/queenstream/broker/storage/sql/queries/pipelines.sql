-- name: report_pipeline
select outcome, wants_plan
from queen.report_pipeline($1, $2, $3, $4, $5, $6, $7, $8, $9::double precision[], $10, $11, $12);

-- name: list_pipelines
-- Each pipeline with its newest run. One that said it runs, and says nothing any more, is lost.
select p.name, r.instance, r.engine, r.error, r.checkpoint, r.started_at, r.reported_at, r.stats,
    case when r.state = 'running'
              and r.reported_at < coalesce($1::timestamptz, clock_timestamp()) - make_interval(secs => $2::float8)
         then 'lost' else r.state end as state
from queen.pipelines p
cross join lateral (
    select * from queen.pipeline_runs r
    where r.pipeline_id = p.id order by r.started_at desc, r.instance desc limit 1) r
order by p.name limit $3 offset $4;

-- name: count_pipelines
select count(*) as total from queen.pipelines;

-- name: pipeline_runs
-- The runs of a pipeline, the newest first; only that one with its plan.
select r.instance, r.engine, r.error, r.checkpoint, r.started_at, r.reported_at, r.stats,
    case when row_number() over w = 1 then r.plan end as plan,
    case when r.state = 'running'
              and r.reported_at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
         then 'lost' else r.state end as state
from queen.pipelines p join queen.pipeline_runs r on r.pipeline_id = p.id
where p.name = $1
window w as (order by r.started_at desc, r.instance desc)
order by r.started_at desc, r.instance desc;

-- name: pipeline_series
select s.* from queen.pipelines p join queen.pipeline_stats s on s.pipeline_id = p.id
where p.name = $1 and s.time > coalesce($2::timestamptz, clock_timestamp()) - make_interval(mins => $3)
order by s.time;

-- name: running_pipelines
-- What runs tell that tell now; of several runs of a pipeline, the newest.
select distinct on (p.name) p.name, r.stats
from queen.pipelines p join queen.pipeline_runs r on r.pipeline_id = p.id
where r.state = 'running'
  and r.reported_at >= coalesce($1::timestamptz, clock_timestamp()) - make_interval(secs => $2::float8)
order by p.name, r.started_at desc limit $3;

-- name: delete_pipeline
delete from queen.pipelines where name = $1 returning id;

-- name: forget_pipeline_stats
with gone as (
    delete from queen.pipeline_stats s
    using (
        select p.id, old.time from queen.pipelines p
        cross join lateral (
            select x.time from queen.pipeline_stats x
            where x.pipeline_id = p.id
              and x.time < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
            order by x.time limit $1) old
        limit $1) old
    where s.pipeline_id = old.id and s.time = old.time
    returning 1)
select count(*)::integer as done from gone;

-- name: forget_pipelines
-- Those of which nobody has told for long.
with gone as (
    delete from queen.pipelines p
    where p.id = any (array(
        select x.id from queen.pipelines x
        where x.created_at < coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
          and not exists (
            select from queen.pipeline_runs r where r.pipeline_id = x.id
              and r.reported_at >= coalesce($2::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8))
        limit $1))
    returning 1)
select count(*)::integer as done from gone;

-- name: look_inside
-- Note that somebody looks, and give what was told last. No row: there is no such pipeline.
insert into queen.pipeline_inside as i (pipeline_id, looked_at, key)
select p.id, coalesce($3::timestamptz, clock_timestamp()), $2::text from queen.pipelines p where p.name = $1
on conflict (pipeline_id) do update set looked_at = excluded.looked_at, key = coalesce(excluded.key, i.key)
returning i.told_at, i.inside, i.key;

-- name: tell_inside
-- What a run told; and the key of what somebody has asked for in the last $3 seconds, if anybody has.
update queen.pipeline_inside i
set inside = coalesce($2::bytea, i.inside),
    told_at = case when $2::bytea is null then i.told_at else coalesce($4::timestamptz, clock_timestamp()) end
from queen.pipelines p
where p.name = $1 and i.pipeline_id = p.id
  and i.looked_at > coalesce($4::timestamptz, clock_timestamp()) - make_interval(secs => $3::float8)
returning i.key;
