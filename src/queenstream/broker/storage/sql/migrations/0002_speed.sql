-- What makes a push cheap.

-- Transactions are found by hash: the index is less than half as large, and comparing its keys costs next to nothing.
-- Two hashes with different seeds, 128 bits in all: that two transactions share both does not happen.
drop index queen.messages_transaction;
create unique index messages_transaction on queen.messages
    (hashtextextended(transaction_id, partition_id), hashtextextended(transaction_id, ~partition_id));

-- The only broker that pushes into a queue (null: several, or nobody yet). It may number messages from memory.
alter table queen.queues add column pusher bigint;
