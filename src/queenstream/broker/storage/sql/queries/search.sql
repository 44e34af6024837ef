-- name: search_messages
-- The next messages of a queue to look at, the newest first: at most $7 rows and $8 bytes (one at least). Only the
-- partitions with the newest matches can hold one of the first $7, so only so many of them are asked for more.
with span as materialized (
    select p.id, case when $4::timestamptz is null then 0 else queen.id_before(p.id, $4) end as after_id,
        least($6::bigint - 1, case when $5::timestamptz is null then 9223372036854775807
            else queen.id_before(p.id, $5::timestamptz + interval '1 microsecond') end) as last_id
    from queen.partitions p
    where p.queue_id = $1 and ($2::text is null or p.name = $2) and p.name >= coalesce($3::text, '')
      and ($3::text is null or p.name < $3 || U&'\+10FFFF')
), newest as (
    select span.*, top.id as top_id
    from span cross join lateral (
        select m.id from queen.messages m
        where m.partition_id = span.id and m.id > span.after_id and m.id <= span.last_id
        order by m.id desc limit 1) top
    order by top.id desc limit $7::integer
), page as (
    select newest.id as partition_id, one.id, one.size
    from newest cross join lateral (
        select m.id, octet_length(m.payload) as size from queen.messages m
        where m.partition_id = newest.id and m.id > newest.after_id and m.id <= newest.top_id
        order by m.id desc limit $7::integer) one
    order by one.id desc limit $7::integer
), fitting as (
    select page.*, sum(page.size) over (order by page.id desc) as bytes, row_number() over (order by page.id desc) as n
    from page
)
select f.partition_id, f.id, m.key_id, m.payload, m.transaction_id, p.name as partition, q.name as queue
from fitting f join queen.messages m on m.partition_id = f.partition_id and m.id = f.id
join queen.partitions p on p.id = f.partition_id
join queen.queues q on q.id = p.queue_id
where f.n = 1 or f.bytes <= $8::bigint
order by f.id desc;

-- name: search_transaction
-- The messages of a queue under a transaction id: one of each partition at most.
select m.partition_id, m.id
from queen.partitions p cross join lateral queen.find_message(p.id, $4) m
where p.queue_id = $1 and ($2::text is null or p.name = $2) and p.name >= coalesce($3::text, '')
  and ($3::text is null or p.name < $3 || U&'\+10FFFF')
order by m.id desc limit $5::integer;

-- name: describe_messages
select d.* from queen.describe_messages($1, $2, $3, coalesce($4::timestamptz, clock_timestamp())) d;
