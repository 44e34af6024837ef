-- Take in what a run tells of itself. p_figures: in the order of queen.pipeline_stats' columns.
-- Gives 'stored'; 'soon', if it told a moment ago; 'full', if there are too many pipelines already.
create or replace function queen.report_pipeline(
    p_name text, p_instance text, p_engine text, p_state text, p_error text, p_checkpoint text, p_plan bytea,
    p_stats bytea, p_figures double precision[], p_most_pipelines integer, p_most_runs integer, p_now timestamptz,
    out outcome text, out wants_plan boolean
) language plpgsql as $$
declare
    v_now constant timestamptz := coalesce(p_now, clock_timestamp());
    v_pipeline integer;
    v_run queen.pipeline_runs;
begin
    wants_plan := false;
    select p.id into v_pipeline from queen.pipelines p where p.name = p_name for key share;
    if v_pipeline is null then
        if (select count(*) from queen.pipelines) >= p_most_pipelines then
            outcome := 'full';
            return;
        end if;
        insert into queen.pipelines as p (name, created_at) values (p_name, v_now)
        on conflict (name) do update set name = excluded.name returning p.id into v_pipeline;
    end if;

    insert into queen.pipeline_runs as r
        (pipeline_id, instance, engine, state, error, checkpoint, plan, stats, started_at, reported_at)
    values (v_pipeline, p_instance, p_engine, p_state, p_error, p_checkpoint, p_plan, p_stats, v_now, v_now)
    on conflict (pipeline_id, instance) do update set
        engine = excluded.engine, state = excluded.state, error = excluded.error, checkpoint = excluded.checkpoint,
        plan = coalesce(excluded.plan, r.plan), stats = excluded.stats, reported_at = v_now
    where r.state <> excluded.state or r.plan is null or r.reported_at <= v_now - interval '1 second'
    returning r.* into v_run;
    if v_run is null then
        outcome := 'soon';
        return;
    end if;
    outcome := 'stored';
    wants_plan := v_run.plan is null;

    if v_run.started_at = v_now then
        delete from queen.pipeline_runs r
        where r.pipeline_id = v_pipeline and r.instance in (
            select o.instance from queen.pipeline_runs o
            where o.pipeline_id = v_pipeline order by o.started_at desc, o.instance desc offset p_most_runs);
    end if;
    -- An older run that still tells is not the pipeline's any more.
    if not exists (
        select from queen.pipeline_runs r where r.pipeline_id = v_pipeline and r.started_at > v_run.started_at)
    then
        insert into queen.pipeline_stats as s values (
            v_pipeline, date_bin('15 seconds', v_now, 'epoch'), p_figures[1], p_figures[2], p_figures[3], p_figures[4],
            p_figures[5], p_figures[6], p_figures[7], p_figures[8], p_figures[9], p_figures[10], p_figures[11],
            p_figures[12], p_figures[13], p_figures[14])
        on conflict (pipeline_id, time) do update set
            messages = excluded.messages, errors = excluded.errors, late = excluded.late,
            dead_letters = excluded.dead_letters, dropped = excluded.dropped,
            messages_per_second = excluded.messages_per_second, latency_p50_ms = excluded.latency_p50_ms,
            latency_p95_ms = excluded.latency_p95_ms, latency_p99_ms = excluded.latency_p99_ms,
            error_rate = excluded.error_rate, queue_depth = excluded.queue_depth,
            watermark_lag_seconds = excluded.watermark_lag_seconds, state_rows = excluded.state_rows,
            state_bytes = excluded.state_bytes;
    end if;
end $$;
