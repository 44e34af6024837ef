-- How values are stored, for brokers and Spark alike.

create or replace function queen.to_us(p_at timestamptz) returns bigint language sql immutable as $$
    select round(date_part('epoch', p_at) * 1000000)::bigint
$$;

-- The window that a message of a stream's own queue stands for; null for any other payload: PostgreSQL may ask before it
-- has seen whose message it is.
create or replace function queen.window_of(p_payload bytea) returns bigint language sql immutable parallel safe as $$
    select case when octet_length(p_payload) <= 18 and encode(p_payload, 'escape') ~ '^[0-9]+$'
        then encode(p_payload, 'escape')::bigint end
$$;
