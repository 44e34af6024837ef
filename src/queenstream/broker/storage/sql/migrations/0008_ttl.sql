-- A message is kept until somebody configures otherwise. Queues that exist keep the ttl they have: one that was chosen
-- cannot be told from the default of before.
alter table queen.queues alter column ttl_seconds set default 0;
