-- name: sink_checkpoint
-- Which checkpoint a step has last written a queue from.
select checkpoint_id, place, run, began_at from queen.sink_checkpoints
where queue = $1 and pipeline = $2 and step = $3;

-- name: record_sink_checkpoint
insert into queen.sink_checkpoints as s (queue, pipeline, step, checkpoint_id, place, run, began_at)
values ($1, $2, $3, $4, $5, $6, coalesce($7::timestamptz, clock_timestamp()))
on conflict (queue, pipeline, step) do update set
    checkpoint_id = excluded.checkpoint_id, place = excluded.place, run = excluded.run, began_at = excluded.began_at
returning s.began_at;
