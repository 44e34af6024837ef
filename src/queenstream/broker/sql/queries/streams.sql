-- name: stream_rows
select * from queen.streams where $1::text is null or name = $1 order by name;

-- name: stream_source_rows
select s.stream_id, s.queue_id, q.name, s.group_id, s.highest_us, s.idle, s.quiet_since
from queen.stream_sources s join queen.queues q on q.id = s.queue_id
where $1::integer is null or s.stream_id = $1
order by s.stream_id, q.name;

-- name: barrier
select queen.barrier($1, $2) as at;

-- name: delete_stream
select queen.delete_stream($1) as existed;

-- name: stream_seek
select queen.stream_seek($1, $2, $3, $4) as moved;

-- name: forget_windows
select queen.forget_windows($1, $2) as forgotten;
