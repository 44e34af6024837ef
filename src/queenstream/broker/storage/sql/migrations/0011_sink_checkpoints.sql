-- compatible from: 7

-- Which checkpoint a pipeline's step has written a queue from: a run from another one would deliver everything again.
create table queen.sink_checkpoints (
    queue text collate "C" not null,
    pipeline text collate "C" not null,
    step text collate "C" not null,
    checkpoint_id text not null,                    -- stays when the checkpoint is moved, copied or rewound
    place text not null,                            -- where it was, for people
    run text not null,                              -- process and host, for people
    began_at timestamptz not null,                  -- when this run delivered its first batch
    primary key (queue, pipeline, step)
);
