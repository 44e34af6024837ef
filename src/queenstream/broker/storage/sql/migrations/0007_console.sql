-- What the console shows and the tables before do not hold.

-- Administrative acts: who did what to what, when and from where. Kept for audit_retention.
create table queen.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null,
    subject text,                                   -- the token's sub; null: no token is asked for, or it has none
    role text not null,
    address text,                                   -- of the connection; a proxy's, where there is one
    forwarded_for text,                             -- what that proxy says, or anybody: a hint
    action text collate "C" not null,
    target text not null,
    details bytea not null                          -- JSON: path, query and body, without payloads
);
create index audit_at on queen.audit (at);
create index audit_target on queen.audit (target, id);

-- What a pipeline's run looks like inside, as it told last. It tells only while somebody looks.
create table queen.pipeline_inside (
    pipeline_id integer primary key references queen.pipelines (id) on delete cascade,
    looked_at timestamptz not null,                 -- the last question, and the key that it was about
    key text,
    told_at timestamptz,
    inside bytea                                    -- JSON
);
