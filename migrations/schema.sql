-- The database as the migrations make it. Written by `npm run generate` and compared in a test; to be read, not run.
--
-- A tour of the tables
--
-- schema_migration
--   One row per applied migration, committed together with it. Written by the migrator; read by every role when it
--   tells whether it is ready.
--
-- project
--   A tenant. Written by the api (management listener); read with every token. Never deleted, which is why
--   instance.project_id needs no foreign key: the key-share lock of one would make every insert of a busy project
--   write the same row.
--
-- api_token
--   Bearer tokens, by their SHA-256 only. Written by the api (management listener); api_token_sha256 serves
--   queries/engine/authenticate.
--
-- machine
--   Machines that some scheduler has declared. Written by schedulers as they start; read by inserts (queue and
--   version defaults, unknown_machine) and by the reaper (max_reclaims).
--
-- queue
--   Settings of a queue; a queue without a row has none. Written by the api (management listener), read by every
--   claim.
--
-- process
--   One row per running process, heart-beaten by it, removed by it at a graceful stop and by the reaper when it is
--   silent.
--
-- instance
--   One row per machine instance (a job is a machine of one step). Inserted by the api and by clients; claimed by
--   schedulers; moved by flushers; healed and removed by reapers. Only the primary key is a full unique index and
--   it never changes, so that updates lock FOR NO KEY UPDATE and coexist with the KEY SHARE of foreign keys.
--
-- signal
--   The inbox of live instances. Written by queries/engine/deliver-signal; read when an instance is claimed;
--   deleted by the flush of the outcome that consumed it, or of the one that ended its instance.
--
-- signal_receipt
--   Dedup keys that an instance has received, kept after consumption and as long as the instance: a redelivery is a
--   no-op then too.
--
-- outcome
--   What a step answered, waiting to be applied. Appended by schedulers (queries/engine/stage-outcomes), taken and
--   deleted by flushers (queries/engine/flush-outcomes). The primary key makes a second outcome of one claim
--   uncommittable.
--
-- outcome_quarantine
--   Outcomes that the database refused to apply, with its reason. Written by the flusher, which fails the instance
--   visibly in the same transaction; kept for people.
--
-- transition
--   History: one row per applied outcome, partitioned by day (UTC). Written by the flusher, and by the reaper for
--   the ends it decides; read by GET /v1/instances/:id/history; dropped by partition.
--
-- limit_policy
--   What a project allows: `rate` tokens every `period_ms`, up to `burst` at once; or `capacity` steps at a time.
--   Written by the api, read by every claim: a change holds from the next claim on. A key is `name` or
--   `name:partition`; each partition has the whole limit. A key without a gate is serial.
--
-- gate_slot
--   The slots of a gate's key: a row has one holder, so more steps than slots cannot be admitted. Made by the first
--   claims of a key, with their holder in it; freed by a trigger of instance in the transaction that ends the
--   claim, whoever ends it; removed by the reaper when all of a key are long free.
--
-- rate_bucket
--   Token buckets, in millionths of a token: whole numbers, so that no rounding can take one below zero (digest
--   N5). Made, refilled and debited by claims; removed by the reaper when they have long been full.
--
-- cascade
--   Cancelled instances whose children are still to be cancelled. Written in the transaction that cancels the
--   parent; worked off by reapers some at a time, so that a parent of a million children costs its caller nothing.
--
-- project_role
--   Database roles that may write into a project through the SQL functions. Written by whoever administers the
--   database; read by each call of a function. Logins that are members of holdfast_enqueue need no row: that role
--   has rights on the tables themselves.
--
-- schedule
--   When to insert an instance of a machine. Defined by the api; moved on by schedulers, which insert the instances
--   (queries/schedules/fire-ticks).
--
-- schedule_run
--   The ticks that have been fired, each with its instance, or without one where the run before was still live.
--   Written in the statement that inserts the instance: the primary key makes a second firing of a tick
--   uncommittable. Not removed with its schedule, so that one of the same name cannot fire its ticks again; removed
--   by the reaper.

-- Types -----------------------------------------------------------------------------------------------------------

CREATE TYPE holdfast.instance_status AS ENUM ('scheduled', 'runnable', 'throttled', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled');

CREATE TYPE holdfast.outcome_kind AS ENUM ('next', 'sleep', 'retry', 'await_signal', 'done', 'fail', 'cancel', 'spawn', 'continue_as');

-- Tables ----------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.schema_migration (
  version       integer NOT NULL,
  name          text NOT NULL,
  sha256        text NOT NULL,
  compatibility text NOT NULL,
  applied_at    timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT schema_migration_pkey PRIMARY KEY (version),
  CONSTRAINT schema_migration_compatibility CHECK (compatibility = ANY (ARRAY['safe'::text, 'breaking'::text]))
);
COMMENT ON TABLE holdfast.schema_migration IS
  'One row per applied migration, committed together with it. Written by the migrator; read by every role when it tells whether it is ready.';

CREATE TABLE holdfast.project (
  id           bigint GENERATED ALWAYS AS IDENTITY,
  name         text NOT NULL,
  suspended_at timestamp with time zone,
  created_at   timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT project_pkey PRIMARY KEY (id),
  CONSTRAINT project_name UNIQUE (name),
  CONSTRAINT project_name_shape CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text)
);
COMMENT ON TABLE holdfast.project IS
  'A tenant. Written by the api (management listener); read with every token. Never deleted, which is why instance.project_id needs no foreign key: the key-share lock of one would make every insert of a busy project write the same row.';

CREATE TABLE holdfast.api_token (
  id         bigint GENERATED ALWAYS AS IDENTITY,
  project_id bigint,
  access     text NOT NULL,
  sha256     bytea NOT NULL,
  label      text,
  created_at timestamp with time zone NOT NULL DEFAULT now(),
  revoked_at timestamp with time zone,
  CONSTRAINT api_token_pkey PRIMARY KEY (id),
  CONSTRAINT api_token_sha256 UNIQUE (sha256),
  CONSTRAINT api_token_access CHECK (access = ANY (ARRAY['read_only'::text, 'read_write'::text, 'operator'::text])),
  CONSTRAINT api_token_label_length CHECK (length(label) <= 200),
  CONSTRAINT api_token_operator_has_no_project CHECK ((access = 'operator'::text) = (project_id IS NULL)),
  CONSTRAINT api_token_sha256_length CHECK (octet_length(sha256) = 32),
  CONSTRAINT api_token_project FOREIGN KEY (project_id) REFERENCES holdfast.project(id)
);
COMMENT ON TABLE holdfast.api_token IS
  'Bearer tokens, by their SHA-256 only. Written by the api (management listener); api_token_sha256 serves queries/engine/authenticate.';

CREATE TABLE holdfast.machine (
  name         text NOT NULL,
  version      integer NOT NULL,
  queue        text NOT NULL,
  max_reclaims integer NOT NULL DEFAULT 5,
  declared_at  timestamp with time zone NOT NULL DEFAULT now(),
  seen_at      timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT machine_pkey PRIMARY KEY (name, version),
  CONSTRAINT machine_max_reclaims_range CHECK (max_reclaims >= 0 AND max_reclaims <= 1000000),
  CONSTRAINT machine_name_length CHECK (length(name) >= 1 AND length(name) <= 200),
  CONSTRAINT machine_queue_length CHECK (length(queue) >= 1 AND length(queue) <= 200),
  CONSTRAINT machine_version_positive CHECK (version > 0)
);
COMMENT ON TABLE holdfast.machine IS
  'Machines that some scheduler has declared. Written by schedulers as they start; read by inserts (queue and version defaults, unknown_machine) and by the reaper (max_reclaims).';

CREATE TABLE holdfast.queue (
  name       text NOT NULL,
  paused_at  timestamp with time zone,
  updated_at timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT queue_pkey PRIMARY KEY (name),
  CONSTRAINT queue_name_length CHECK (length(name) >= 1 AND length(name) <= 200)
);
COMMENT ON TABLE holdfast.queue IS
  'Settings of a queue; a queue without a row has none. Written by the api (management listener), read by every claim.';

CREATE TABLE holdfast.process (
  id           bigint GENERATED ALWAYS AS IDENTITY,
  role         text NOT NULL,
  host         text NOT NULL,
  pid          integer NOT NULL,
  version      text NOT NULL,
  pool_max     integer NOT NULL,
  started_at   timestamp with time zone NOT NULL DEFAULT now(),
  heartbeat_at timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT process_pkey PRIMARY KEY (id),
  CONSTRAINT process_pool_max_positive CHECK (pool_max > 0)
);
COMMENT ON TABLE holdfast.process IS
  'One row per running process, heart-beaten by it, removed by it at a graceful stop and by the reaper when it is silent.';

CREATE TABLE holdfast.instance (
  id                  bigint GENERATED ALWAYS AS IDENTITY,
  project_id          bigint NOT NULL,
  parent_id           bigint,
  claim_epoch         bigint NOT NULL DEFAULT 0,
  eligible_at         timestamp with time zone NOT NULL DEFAULT now(),
  lease_expires_at    timestamp with time zone,
  await_deadline      timestamp with time zone,
  inserted_at         timestamp with time zone NOT NULL DEFAULT now(),
  updated_at          timestamp with time zone NOT NULL DEFAULT now(),
  version             integer NOT NULL DEFAULT 1,
  attempt             integer NOT NULL DEFAULT 0,
  reclaims            integer NOT NULL DEFAULT 0,
  children_pending    integer NOT NULL DEFAULT 0,
  rate_weight         integer NOT NULL DEFAULT 1,
  status              holdfast.instance_status NOT NULL DEFAULT 'runnable'::holdfast.instance_status,
  priority            smallint NOT NULL DEFAULT 0,
  machine             text NOT NULL,
  step                text NOT NULL DEFAULT 'start'::text,
  queue               text NOT NULL DEFAULT 'default'::text,
  state               jsonb NOT NULL DEFAULT '{}'::jsonb,
  result              jsonb,
  error               jsonb,
  claimed_by          text,
  concurrency_key     text,
  rate_key            text,
  awaits              text[],
  correlation_key     text,
  correlation_scope   holdfast.instance_status[] NOT NULL DEFAULT '{}'::holdfast.instance_status[],
  correlation_guard   text GENERATED ALWAYS AS (
    CASE
        WHEN (status <> ALL (ARRAY['done'::holdfast.instance_status, 'failed'::holdfast.instance_status, 'cancelled'::holdfast.instance_status])) OR (status = ANY (correlation_scope)) THEN correlation_key
        ELSE NULL::text
    END) STORED,
  traceparent         text,
  parent_epoch        bigint,
  throttled_until     timestamp with time zone,
  cancel_requested_at timestamp with time zone,
  cancel_reason       text,
  gate_slot           integer,
  CONSTRAINT instance_pkey PRIMARY KEY (id),
  CONSTRAINT instance_awaiting_has_children CHECK (status <> 'awaiting_children'::holdfast.instance_status OR children_pending > 0),
  CONSTRAINT instance_awaiting_names_signals CHECK (status <> 'awaiting_signal'::holdfast.instance_status OR cardinality(awaits) > 0),
  CONSTRAINT instance_cancel_reason_length CHECK (length(cancel_reason) <= 2000),
  CONSTRAINT instance_children_pending_not_negative CHECK (children_pending >= 0),
  CONSTRAINT instance_correlation_scope_is_terminal CHECK (correlation_scope <@ ARRAY['done'::holdfast.instance_status, 'failed'::holdfast.instance_status, 'cancelled'::holdfast.instance_status]),
  CONSTRAINT instance_executing_is_claimed CHECK ((status = 'executing'::holdfast.instance_status) = (claimed_by IS NOT NULL)),
  CONSTRAINT instance_executing_is_leased CHECK ((status = 'executing'::holdfast.instance_status) = (lease_expires_at IS NOT NULL)),
  CONSTRAINT instance_keys_length CHECK (length(concurrency_key) <= 500 AND length(correlation_key) <= 500 AND length(rate_key) <= 500),
  CONSTRAINT instance_rate_weight_positive CHECK (rate_weight > 0),
  CONSTRAINT instance_result_is_of_done CHECK (result IS NULL OR status = 'done'::holdfast.instance_status),
  CONSTRAINT instance_throttled_has_a_waker CHECK (status <> 'throttled'::holdfast.instance_status OR concurrency_key IS NOT NULL OR throttled_until IS NOT NULL),
  CONSTRAINT instance_throttled_until_is_of_throttled CHECK (throttled_until IS NULL OR status = 'throttled'::holdfast.instance_status),
  CONSTRAINT instance_words_length CHECK (length(machine) >= 1 AND length(machine) <= 200 AND length(step) >= 1 AND length(step) <= 200 AND length(queue) >= 1 AND length(queue) <= 200)
) WITH (
  fillfactor = 90,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX instance_await_deadline ON holdfast.instance USING btree (await_deadline) WHERE ((status = ANY (ARRAY['awaiting_signal'::holdfast.instance_status, 'awaiting_children'::holdfast.instance_status])) AND (await_deadline IS NOT NULL));
CREATE INDEX instance_cancelling ON holdfast.instance USING btree (cancel_requested_at) WHERE ((status = 'executing'::holdfast.instance_status) AND (cancel_requested_at IS NOT NULL));
CREATE UNIQUE INDEX instance_concurrency_active ON holdfast.instance USING btree (project_id, concurrency_key) WHERE ((status = 'executing'::holdfast.instance_status) AND (concurrency_key IS NOT NULL) AND (gate_slot IS NULL));
CREATE UNIQUE INDEX instance_correlation ON holdfast.instance USING btree (project_id, correlation_guard) WHERE (correlation_guard IS NOT NULL);
CREATE INDEX instance_due ON holdfast.instance USING btree (eligible_at) WHERE (status = 'scheduled'::holdfast.instance_status);
CREATE INDEX instance_finished ON holdfast.instance USING btree (updated_at) WHERE (status = ANY (ARRAY['done'::holdfast.instance_status, 'failed'::holdfast.instance_status, 'cancelled'::holdfast.instance_status]));
CREATE INDEX instance_lease ON holdfast.instance USING btree (lease_expires_at) WHERE (status = 'executing'::holdfast.instance_status);
CREATE INDEX instance_line ON holdfast.instance USING btree (project_id, concurrency_key, queue, priority, eligible_at, id) WHERE ((status = ANY (ARRAY['runnable'::holdfast.instance_status, 'throttled'::holdfast.instance_status])) AND (concurrency_key IS NOT NULL));
CREATE INDEX instance_parent ON holdfast.instance USING btree (parent_id, id) WHERE (parent_id IS NOT NULL);
CREATE INDEX instance_pick ON holdfast.instance USING btree (queue, priority, eligible_at, id) WHERE (status = 'runnable'::holdfast.instance_status);
CREATE INDEX instance_project ON holdfast.instance USING btree (project_id, id) WHERE (status <> 'executing'::holdfast.instance_status);
CREATE INDEX instance_rate_line ON holdfast.instance USING btree (project_id, rate_key, throttled_until, priority, eligible_at, id) WHERE ((status = 'throttled'::holdfast.instance_status) AND (throttled_until IS NOT NULL) AND (rate_key IS NOT NULL));
CREATE INDEX instance_throttled_until ON holdfast.instance USING btree (throttled_until) WHERE ((status = 'throttled'::holdfast.instance_status) AND (throttled_until IS NOT NULL));
COMMENT ON TABLE holdfast.instance IS
  'One row per machine instance (a job is a machine of one step). Inserted by the api and by clients; claimed by schedulers; moved by flushers; healed and removed by reapers. Only the primary key is a full unique index and it never changes, so that updates lock FOR NO KEY UPDATE and coexist with the KEY SHARE of foreign keys.';
COMMENT ON COLUMN holdfast.instance.parent_id IS
  'The instance that spawned this one; it may have been removed since, by its own retention.';
COMMENT ON COLUMN holdfast.instance.claim_epoch IS
  'Counts claims. An outcome carries the epoch it was made under: a run that lost its lease cannot write, even if the same worker claims again.';
COMMENT ON COLUMN holdfast.instance.updated_at IS
  'Last change of status: the claim time of an executing row, the end of a terminal one. Heart-beats do not touch it.';
COMMENT ON COLUMN holdfast.instance.awaits IS
  'Signal names of the last park; kept through the wake until the woken step ends, because they decide what the step is shown as awaited.';
COMMENT ON COLUMN holdfast.instance.parent_epoch IS
  'The claim epoch of the parent when it spawned this child. The parent keeps that epoch while it waits, so a child of an earlier spawn cannot count towards a later one. Null for a child that a person has retried: it has been counted.';
COMMENT ON COLUMN holdfast.instance.throttled_until IS
  'When the bucket of its rate limit will have refilled as far as this row''s place in the line; null for a row that a key has denied, which is woken by whoever frees it.';
COMMENT ON COLUMN holdfast.instance.cancel_requested_at IS
  'Somebody asked an executing instance to stop. Its step is told; what it then answers ends the instance, and a reaper ends it when the grace is over.';
COMMENT ON COLUMN holdfast.instance.gate_slot IS
  'The slot of its gate that the last claim took; null for a serial key. Means something only while executing; written by claims and by nothing else.';

CREATE TABLE holdfast.signal (
  id          bigint GENERATED ALWAYS AS IDENTITY,
  target_id   bigint NOT NULL,
  inserted_at timestamp with time zone NOT NULL DEFAULT now(),
  name        text NOT NULL,
  payload     jsonb NOT NULL DEFAULT '{}'::jsonb,
  dedup_key   text,
  traceparent text,
  CONSTRAINT signal_pkey PRIMARY KEY (id),
  CONSTRAINT signal_dedup_key_length CHECK (length(dedup_key) >= 1 AND length(dedup_key) <= 500),
  CONSTRAINT signal_name_length CHECK (length(name) >= 1 AND length(name) <= 200)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX signal_dedup ON holdfast.signal USING btree (target_id, dedup_key) WHERE (dedup_key IS NOT NULL);
CREATE INDEX signal_target ON holdfast.signal USING btree (target_id, id);
COMMENT ON TABLE holdfast.signal IS
  'The inbox of live instances. Written by queries/engine/deliver-signal; read when an instance is claimed; deleted by the flush of the outcome that consumed it, or of the one that ended its instance.';

CREATE TABLE holdfast.signal_receipt (
  target_id   bigint NOT NULL,
  dedup_key   text NOT NULL,
  received_at timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT signal_receipt_pkey PRIMARY KEY (target_id, dedup_key)
);
COMMENT ON TABLE holdfast.signal_receipt IS
  'Dedup keys that an instance has received, kept after consumption and as long as the instance: a redelivery is a no-op then too.';

CREATE TABLE holdfast.outcome (
  seq             bigint GENERATED ALWAYS AS IDENTITY,
  instance_id     bigint NOT NULL,
  claim_epoch     bigint NOT NULL,
  delay_ms        bigint,
  timeout_ms      bigint,
  staged_at       timestamp with time zone NOT NULL DEFAULT now(),
  claimed_ago_us  bigint NOT NULL DEFAULT 0,
  started_ago_us  bigint NOT NULL DEFAULT 0,
  finished_ago_us bigint NOT NULL DEFAULT 0,
  attempt         integer NOT NULL,
  kind            holdfast.outcome_kind NOT NULL,
  keep_history    boolean NOT NULL DEFAULT true,
  worker          text NOT NULL,
  from_step       text NOT NULL,
  step            text,
  awaits          text[],
  presented       bigint[],
  consumed        bigint[],
  state           jsonb,
  result          jsonb,
  error           jsonb,
  traceparent     text,
  version         integer,
  rate_weight     integer,
  join_count      integer,
  key_change      boolean NOT NULL DEFAULT false,
  discard         boolean NOT NULL DEFAULT false,
  held_key        text,
  concurrency_key text,
  rate_key        text,
  children        jsonb,
  CONSTRAINT outcome_pkey PRIMARY KEY (instance_id, claim_epoch),
  CONSTRAINT outcome_delay_range CHECK (delay_ms >= 0 AND delay_ms <= '3155760000000'::bigint),
  CONSTRAINT outcome_shape CHECK (
    CASE kind
        WHEN 'next'::holdfast.outcome_kind THEN step IS NOT NULL
        WHEN 'sleep'::holdfast.outcome_kind THEN step IS NOT NULL AND delay_ms IS NOT NULL
        WHEN 'retry'::holdfast.outcome_kind THEN delay_ms IS NOT NULL
        WHEN 'await_signal'::holdfast.outcome_kind THEN step IS NOT NULL AND cardinality(awaits) > 0
        WHEN 'spawn'::holdfast.outcome_kind THEN step IS NOT NULL AND jsonb_typeof(children) = 'array'::text AND (join_count IS NULL OR join_count > 0)
        WHEN 'continue_as'::holdfast.outcome_kind THEN step IS NOT NULL AND version > 0
        WHEN 'done'::holdfast.outcome_kind THEN error IS NULL
        ELSE error IS NOT NULL AND result IS NULL
    END),
  CONSTRAINT outcome_step_length CHECK (length(step) >= 1 AND length(step) <= 200),
  CONSTRAINT outcome_timeout_range CHECK (timeout_ms >= 1 AND timeout_ms <= '3155760000000'::bigint)
) WITH (
  fillfactor = 100,
  autovacuum_vacuum_scale_factor = 0.0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX outcome_seq ON holdfast.outcome USING btree (seq);
COMMENT ON TABLE holdfast.outcome IS
  'What a step answered, waiting to be applied. Appended by schedulers (queries/engine/stage-outcomes), taken and deleted by flushers (queries/engine/flush-outcomes). The primary key makes a second outcome of one claim uncommittable.';
COMMENT ON COLUMN holdfast.outcome.key_change IS
  'The next step has the key in concurrency_key, which may be none; false: it keeps the one it has.';
COMMENT ON COLUMN holdfast.outcome.held_key IS
  'The concurrency key that its claim held: whoever waits for it is looked after when the claim is over.';

CREATE TABLE holdfast.outcome_quarantine (
  id             bigint GENERATED ALWAYS AS IDENTITY,
  instance_id    bigint NOT NULL,
  claim_epoch    bigint NOT NULL,
  outcome        jsonb NOT NULL,
  error          jsonb NOT NULL,
  quarantined_at timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT outcome_quarantine_pkey PRIMARY KEY (id)
);
CREATE INDEX outcome_quarantine_instance ON holdfast.outcome_quarantine USING btree (instance_id);
COMMENT ON TABLE holdfast.outcome_quarantine IS
  'Outcomes that the database refused to apply, with its reason. Written by the flusher, which fails the instance visibly in the same transaction; kept for people.';

CREATE TABLE holdfast.transition (
  flushed_at  timestamp with time zone NOT NULL DEFAULT now(),
  claimed_at  timestamp with time zone,
  started_at  timestamp with time zone,
  finished_at timestamp with time zone,
  instance_id bigint NOT NULL,
  claim_epoch bigint NOT NULL,
  attempt     integer NOT NULL,
  kind        holdfast.outcome_kind NOT NULL,
  to_status   holdfast.instance_status NOT NULL,
  from_step   text NOT NULL,
  to_step     text,
  worker      text,
  error       jsonb
) PARTITION BY RANGE (flushed_at);
CREATE INDEX transition_instance ON ONLY holdfast.transition USING btree (instance_id, claim_epoch);
COMMENT ON TABLE holdfast.transition IS
  'History: one row per applied outcome, partitioned by day (UTC). Written by the flusher, and by the reaper for the ends it decides; read by GET /v1/instances/:id/history; dropped by partition.';

CREATE TABLE holdfast.transition_default PARTITION OF holdfast.transition DEFAULT;

CREATE TABLE holdfast.limit_policy (
  project_id bigint NOT NULL,
  kind       text NOT NULL,
  name       text NOT NULL,
  rate       bigint,
  period_ms  bigint,
  burst      integer,
  shards     smallint,
  capacity   integer,
  revision   integer NOT NULL DEFAULT 1,
  created_at timestamp with time zone NOT NULL DEFAULT now(),
  updated_at timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT limit_policy_pkey PRIMARY KEY (project_id, kind, name),
  CONSTRAINT limit_policy_burst_range CHECK (burst >= 1 AND burst <= 1000000000),
  CONSTRAINT limit_policy_capacity_range CHECK (capacity >= 0 AND capacity <= 100000),
  CONSTRAINT limit_policy_kind CHECK (kind = ANY (ARRAY['rate'::text, 'gate'::text])),
  CONSTRAINT limit_policy_name_shape CHECK (length(name) >= 1 AND length(name) <= 200 AND POSITION((':'::text) IN (name)) = 0),
  CONSTRAINT limit_policy_period_range CHECK (period_ms >= 1 AND period_ms <= '31536000000'::bigint),
  CONSTRAINT limit_policy_rate_range CHECK (rate >= 0 AND rate <= 1000000000),
  CONSTRAINT limit_policy_shape CHECK (
    CASE kind
        WHEN 'rate'::text THEN rate IS NOT NULL AND period_ms IS NOT NULL AND burst IS NOT NULL AND shards IS NOT NULL AND capacity IS NULL
        ELSE rate IS NULL AND period_ms IS NULL AND burst IS NULL AND shards IS NULL AND capacity IS NOT NULL
    END),
  CONSTRAINT limit_policy_shards_range CHECK (shards >= 1 AND shards <= 64),
  CONSTRAINT limit_policy_project FOREIGN KEY (project_id) REFERENCES holdfast.project(id)
);
COMMENT ON TABLE holdfast.limit_policy IS
  'What a project allows: `rate` tokens every `period_ms`, up to `burst` at once; or `capacity` steps at a time. Written by the api, read by every claim: a change holds from the next claim on. A key is `name` or `name:partition`; each partition has the whole limit. A key without a gate is serial.';

CREATE TABLE holdfast.gate_slot (
  project_id   bigint NOT NULL,
  key          text NOT NULL,
  slot         integer NOT NULL,
  holder_id    bigint,
  holder_epoch bigint,
  changed_at   timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT gate_slot_pkey PRIMARY KEY (project_id, key, slot),
  CONSTRAINT gate_slot_holder_has_an_epoch CHECK ((holder_id IS NULL) = (holder_epoch IS NULL)),
  CONSTRAINT gate_slot_slot_not_negative CHECK (slot >= 0)
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.0,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE holdfast.gate_slot IS
  'The slots of a gate''s key: a row has one holder, so more steps than slots cannot be admitted. Made by the first claims of a key, with their holder in it; freed by a trigger of instance in the transaction that ends the claim, whoever ends it; removed by the reaper when all of a key are long free.';

CREATE TABLE holdfast.rate_bucket (
  project_id  bigint NOT NULL,
  key         text NOT NULL,
  shard       smallint NOT NULL,
  revision    integer NOT NULL,
  tokens      bigint NOT NULL,
  capacity    bigint NOT NULL,
  refilled_at timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT rate_bucket_pkey PRIMARY KEY (project_id, key, shard),
  CONSTRAINT rate_bucket_shard_not_negative CHECK (shard >= 0),
  CONSTRAINT rate_bucket_within_capacity CHECK (tokens >= 0 AND tokens <= capacity)
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.0,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE holdfast.rate_bucket IS
  'Token buckets, in millionths of a token: whole numbers, so that no rounding can take one below zero (digest N5). Made, refilled and debited by claims; removed by the reaper when they have long been full.';
COMMENT ON COLUMN holdfast.rate_bucket.revision IS
  'Of the policy, when this shard was last written. A shard that has missed a revision holds tokens of an arrangement in which others had them too; they do not count (digest N6).';

CREATE TABLE holdfast.cascade (
  parent_id    bigint NOT NULL,
  reason       text,
  requested_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT cascade_pkey PRIMARY KEY (parent_id)
);
COMMENT ON TABLE holdfast.cascade IS
  'Cancelled instances whose children are still to be cancelled. Written in the transaction that cancels the parent; worked off by reapers some at a time, so that a parent of a million children costs its caller nothing.';

CREATE TABLE holdfast.project_role (
  project_id bigint NOT NULL,
  role_name  text NOT NULL,
  created_at timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT project_role_pkey PRIMARY KEY (project_id, role_name),
  CONSTRAINT project_role_name_length CHECK (length(role_name) >= 1 AND length(role_name) <= 63),
  CONSTRAINT project_role_project FOREIGN KEY (project_id) REFERENCES holdfast.project(id)
);
COMMENT ON TABLE holdfast.project_role IS
  'Database roles that may write into a project through the SQL functions. Written by whoever administers the database; read by each call of a function. Logins that are members of holdfast_enqueue need no row: that role has rights on the tables themselves.';

CREATE TABLE holdfast.schedule (
  project_id       bigint NOT NULL,
  name             text NOT NULL,
  revision         bigint NOT NULL DEFAULT 1,
  cron             text NOT NULL,
  timezone         text NOT NULL DEFAULT 'UTC'::text,
  machine          text NOT NULL,
  version          integer,
  input            jsonb NOT NULL DEFAULT '{}'::jsonb,
  queue            text,
  priority         smallint NOT NULL DEFAULT 0,
  concurrency_key  text,
  catch_up         text NOT NULL DEFAULT 'none'::text,
  overlap          text NOT NULL DEFAULT 'allow'::text,
  next_at          timestamp with time zone,
  due_at           timestamp with time zone,
  last_at          timestamp with time zone,
  last_instance_id bigint,
  skipped_at       timestamp with time zone,
  skipped_why      text,
  paused_at        timestamp with time zone,
  failures         integer NOT NULL DEFAULT 0,
  last_error       jsonb,
  last_error_at    timestamp with time zone,
  created_at       timestamp with time zone NOT NULL DEFAULT now(),
  updated_at       timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT schedule_pkey PRIMARY KEY (project_id, name),
  CONSTRAINT schedule_catch_up CHECK (catch_up = ANY (ARRAY['none'::text, 'one'::text, 'all'::text])),
  CONSTRAINT schedule_concurrency_key_length CHECK (length(concurrency_key) >= 1 AND length(concurrency_key) <= 500),
  CONSTRAINT schedule_cron_length CHECK (length(cron) >= 1 AND length(cron) <= 1000),
  CONSTRAINT schedule_failures_not_negative CHECK (failures >= 0),
  CONSTRAINT schedule_machine_length CHECK (length(machine) >= 1 AND length(machine) <= 200),
  CONSTRAINT schedule_name_shape CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'::text),
  CONSTRAINT schedule_next_has_a_look CHECK ((next_at IS NULL) = (due_at IS NULL)),
  CONSTRAINT schedule_next_is_after_last CHECK (next_at > last_at),
  CONSTRAINT schedule_overlap CHECK (overlap = ANY (ARRAY['allow'::text, 'skip'::text, 'queue'::text])),
  CONSTRAINT schedule_paused_has_no_next CHECK ((paused_at IS NULL) = (next_at IS NOT NULL)),
  CONSTRAINT schedule_queue_has_the_key CHECK (overlap <> 'queue'::text OR concurrency_key IS NULL),
  CONSTRAINT schedule_queue_length CHECK (length(queue) >= 1 AND length(queue) <= 200),
  CONSTRAINT schedule_skipped_why CHECK (skipped_why = ANY (ARRAY['missed'::text, 'overlap'::text])),
  CONSTRAINT schedule_timezone_length CHECK (length(timezone) >= 1 AND length(timezone) <= 100),
  CONSTRAINT schedule_version_positive CHECK (version > 0),
  CONSTRAINT schedule_project FOREIGN KEY (project_id) REFERENCES holdfast.project(id)
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.0,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX schedule_due ON holdfast.schedule USING btree (due_at) WHERE (due_at IS NOT NULL);
COMMENT ON TABLE holdfast.schedule IS
  'When to insert an instance of a machine. Defined by the api; moved on by schedulers, which insert the instances (queries/schedules/fire-ticks).';
COMMENT ON COLUMN holdfast.schedule.revision IS
  'Counts changes, a firing among them: who has computed ticks from a row that has changed since fires none.';
COMMENT ON COLUMN holdfast.schedule.next_at IS
  'The next tick that has not been dealt with; null while paused.';
COMMENT ON COLUMN holdfast.schedule.due_at IS
  'When a scheduler looks at it: next_at, or later while it fails. Served by schedule_due.';
COMMENT ON COLUMN holdfast.schedule.last_at IS
  'The newest tick that has made an instance.';
COMMENT ON COLUMN holdfast.schedule.skipped_at IS
  'The newest tick that has made none, and in skipped_why the reason: it was missed and catch_up does not want it, or the run before it was still live.';

CREATE TABLE holdfast.schedule_run (
  project_id  bigint NOT NULL,
  schedule    text NOT NULL,
  tick_at     timestamp with time zone NOT NULL,
  instance_id bigint,
  fired_at    timestamp with time zone NOT NULL DEFAULT now(),
  CONSTRAINT schedule_run_pkey PRIMARY KEY (project_id, schedule, tick_at)
);
CREATE INDEX schedule_run_fired_at ON holdfast.schedule_run USING btree (fired_at);
COMMENT ON TABLE holdfast.schedule_run IS
  'The ticks that have been fired, each with its instance, or without one where the run before was still live. Written in the statement that inserts the instance: the primary key makes a second firing of a tick uncommittable. Not removed with its schedule, so that one of the same name cannot fire its ticks again; removed by the reaper.';

-- Functions -------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION holdfast.drop_transition_partitions(keep_days integer)
 RETURNS integer
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET lock_timeout TO '500ms'
AS $function$
DECLARE
  partition_name text; dropped integer := 0;
BEGIN
  FOR partition_name IN
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'holdfast.transition'::regclass AND c.relname ~ '^transition_[0-9]{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') < (now() AT TIME ZONE 'UTC')::date - greatest(keep_days, 0)
    ORDER BY c.relname
  LOOP
    EXECUTE format('DROP TABLE IF EXISTS holdfast.%I', partition_name);
    dropped := dropped + 1;
  END LOOP;
  RETURN dropped;
END $function$;

CREATE OR REPLACE FUNCTION holdfast.enqueue(project text, machine text, state jsonb DEFAULT '{}'::jsonb, version integer DEFAULT NULL::integer, queue text DEFAULT NULL::text, priority integer DEFAULT 0, delay interval DEFAULT NULL::interval, eligible_at timestamp with time zone DEFAULT NULL::timestamp with time zone, correlation_key text DEFAULT NULL::text, correlation_scope text[] DEFAULT NULL::text[], concurrency_key text DEFAULT NULL::text, rate_limit text DEFAULT NULL::text, rate_weight integer DEFAULT NULL::integer, traceparent text DEFAULT NULL::text, notify boolean DEFAULT false, OUT id bigint, OUT created boolean)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
  into_project constant bigint := holdfast.writable_project(project);
BEGIN
  IF delay IS NOT NULL AND eligible_at IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'give delay or eligible_at, not both', HINT = 'Nothing was inserted.';
  END IF;
  IF NOT isfinite(delay) OR extract(epoch FROM delay) NOT BETWEEN 0 AND 3155760000 THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'delay: expected 0 to 100 years', HINT = 'Nothing was inserted.';
  END IF;
  SELECT i.instance_id, i.inserted INTO id, created FROM holdfast.insert_instances(
    into_project, NULL, ARRAY[machine], ARRAY[version], ARRAY[queue], ARRAY[state], ARRAY[priority], ARRAY[coalesce(eligible_at, now() + delay)],
    ARRAY[correlation_key], ARRAY[correlation_scope::text], ARRAY[concurrency_key], ARRAY[rate_limit], ARRAY[rate_weight], traceparent, notify
  ) i;
END $function$;
COMMENT ON FUNCTION holdfast.enqueue(text,text,jsonb,integer,text,integer,interval,timestamp with time zone,text,text[],text,text,integer,text,boolean) IS
  'Inserts an instance in the caller''s transaction, or answers the one that occupies its correlation key (created = false). docs/sql.md.';

CREATE OR REPLACE FUNCTION holdfast.enqueue_many(project text, instances jsonb, traceparent text DEFAULT NULL::text, notify boolean DEFAULT false)
 RETURNS TABLE(place integer, id bigint, created boolean)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
  into_project constant bigint := holdfast.writable_project(project);
  complaint text;
BEGIN
  IF instances IS NULL OR instances = '[]' THEN
    RETURN; -- a statement's trigger also fires for no rows, of which jsonb_agg makes null
  END IF;
  IF jsonb_typeof(instances) <> 'array' OR jsonb_array_length(instances) > 10000 THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'instances: expected a JSON array of at most 10000 objects', HINT = 'Nothing was inserted.';
  END IF;
  SELECT format('instances.%s: expected an object, not %s', e.ord - 1, jsonb_typeof(e.given)) INTO complaint
  FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord) WHERE jsonb_typeof(e.given) <> 'object' ORDER BY e.ord LIMIT 1;
  IF complaint IS NULL THEN
    -- Whether each field is known and of its type, so that the casts below cannot fail. A null is a field that was not given, as in SQL; not so a state.
    SELECT format('instances.%s.%s%s: ', e.ord - 1, f.within, left(f.key, 200)) || CASE WHEN k.kind IS NULL THEN 'there is no such field' ELSE 'expected ' || k.kind END
    INTO complaint
    FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord)
    CROSS JOIN LATERAL (
      SELECT '' AS within, a.key, a.value FROM jsonb_each(e.given) a
      UNION ALL
      SELECT 'rate_limit.', b.key, b.value
      FROM jsonb_each(CASE WHEN jsonb_typeof(e.given -> 'rate_limit') = 'object' THEN e.given -> 'rate_limit' ELSE '{}' END) b
    ) f
    LEFT JOIN (VALUES
      ('', 'machine', 'a text'), ('', 'state', 'JSON'), ('', 'input', 'JSON'), ('', 'version', 'a whole number'), ('', 'queue', 'a text'),
      ('', 'priority', 'a whole number'), ('', 'delay_ms', 'a whole number'), ('', 'eligible_at', 'an ISO 8601 instant with its offset'),
      ('', 'correlation_key', 'a text'), ('', 'correlation_scope', 'an array of texts'), ('', 'concurrency_key', 'a text'),
      ('', 'rate_limit', 'an object with a name'), ('rate_limit.', 'name', 'a text'), ('rate_limit.', 'partition', 'a text'),
      ('rate_limit.', 'weight', 'a whole number')
    ) AS k (within, field, kind) ON k.within = f.within AND k.field = f.key
    WHERE k.kind IS NULL OR jsonb_typeof(f.value) <> 'null' AND NOT CASE k.kind
      WHEN 'JSON' THEN true
      WHEN 'an object with a name' THEN jsonb_typeof(f.value) = 'object' AND jsonb_typeof(f.value -> 'name') = 'string'
      WHEN 'an array of texts' THEN jsonb_typeof(f.value) = 'array' AND NOT jsonb_path_exists(f.value, 'strict $[*] ? (@.type() != "string")')
      WHEN 'a whole number' THEN CASE WHEN jsonb_typeof(f.value) = 'number'
        THEN f.value::numeric = trunc(f.value::numeric) AND abs(f.value::numeric) <= CASE f.key WHEN 'delay_ms' THEN 3155760000000 ELSE 2147483647 END
        ELSE false END
      WHEN 'an ISO 8601 instant with its offset' THEN
        jsonb_typeof(f.value) = 'string' AND f.value #>> '{}' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$'
      ELSE jsonb_typeof(f.value) = 'string' END
    ORDER BY e.ord, f.within, f.key LIMIT 1;
  END IF;
  IF complaint IS NULL THEN
    SELECT format('instances.%s: ', e.ord - 1) || CASE
      WHEN e.given ? 'state' AND e.given ? 'input' THEN 'give state or input, not both'
      WHEN e.given ->> 'delay_ms' IS NOT NULL AND e.given ->> 'eligible_at' IS NOT NULL THEN 'give delay_ms or eligible_at, not both'
      WHEN (e.given ->> 'delay_ms')::numeric < 0 THEN 'delay_ms: expected 0 to 3155760000000'
      WHEN position(':' IN e.given #>> '{rate_limit,name}') > 0 THEN 'rate_limit.name: expected a name without a colon' END
    INTO complaint
    FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord)
    WHERE e.given ? 'state' AND e.given ? 'input' OR e.given ->> 'delay_ms' IS NOT NULL AND e.given ->> 'eligible_at' IS NOT NULL
      OR (e.given ->> 'delay_ms')::numeric < 0 OR position(':' IN e.given #>> '{rate_limit,name}') > 0
    ORDER BY e.ord LIMIT 1;
  END IF;
  IF complaint IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = complaint, HINT = 'Nothing was inserted. The fields are those of POST /v1/instances.';
  END IF;
  IF jsonb_path_exists(instances, '$[*].eligible_at') THEN -- a block that catches costs a subtransaction
    BEGIN
      PERFORM (e.given ->> 'eligible_at')::timestamptz FROM jsonb_array_elements(instances) AS e (given);
    EXCEPTION WHEN data_exception THEN
      RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = 'eligible_at: there is no such instant: ' || SQLERRM, HINT = 'Nothing was inserted.';
    END;
  END IF;

  RETURN QUERY WITH given AS MATERIALIZED (
    SELECT array_agg(e.given ->> 'machine' ORDER BY e.ord) AS machines,
      array_agg((e.given ->> 'version')::numeric::integer ORDER BY e.ord) AS versions,
      array_agg(e.given ->> 'queue' ORDER BY e.ord) AS queues,
      array_agg(CASE WHEN e.given ? 'input' THEN e.given -> 'input' ELSE e.given -> 'state' END ORDER BY e.ord) AS states,
      array_agg((e.given ->> 'priority')::numeric::integer ORDER BY e.ord) AS priorities,
      array_agg(coalesce((e.given ->> 'eligible_at')::timestamptz, now() + (e.given ->> 'delay_ms')::float8 * interval '1 millisecond') ORDER BY e.ord)
        AS eligible_ats,
      array_agg(e.given ->> 'correlation_key' ORDER BY e.ord) AS correlation_keys,
      array_agg(CASE WHEN jsonb_typeof(e.given -> 'correlation_scope') = 'array'
        THEN ARRAY(SELECT jsonb_array_elements_text(e.given -> 'correlation_scope'))::text END ORDER BY e.ord) AS correlation_scopes,
      array_agg(e.given ->> 'concurrency_key' ORDER BY e.ord) AS concurrency_keys,
      array_agg((e.given #>> '{rate_limit,name}') || coalesce(':' || (e.given #>> '{rate_limit,partition}'), '') ORDER BY e.ord) AS rate_keys,
      array_agg((e.given #>> '{rate_limit,weight}')::numeric::integer ORDER BY e.ord) AS rate_weights
    FROM jsonb_array_elements(instances) WITH ORDINALITY AS e (given, ord)
  )
  SELECT i.place, i.instance_id, i.inserted FROM given g, holdfast.insert_instances(
    into_project, 'instances', g.machines, g.versions, g.queues, g.states, g.priorities, g.eligible_ats, g.correlation_keys, g.correlation_scopes,
    g.concurrency_keys, g.rate_keys, g.rate_weights, traceparent, notify
  ) i ORDER BY i.place;
END $function$;
COMMENT ON FUNCTION holdfast.enqueue_many(text,jsonb,text,boolean) IS
  'Inserts up to 10,000 instances, given as the JSON objects of POST /v1/instances, in the caller''s transaction: all, but for those whose key is occupied, or none. docs/sql.md.';

CREATE OR REPLACE FUNCTION holdfast.ensure_transition_partitions(days_ahead integer)
 RETURNS integer
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  day date; partition_name text; made integer := 0;
BEGIN
  FOR day IN SELECT generate_series(0, least(days_ahead, 60)) + (now() AT TIME ZONE 'UTC')::date LOOP
    partition_name := 'transition_' || to_char(day, 'YYYYMMDD');
    CONTINUE WHEN to_regclass('holdfast.' || partition_name) IS NOT NULL;
    -- Two reapers may get here at once; the lock lets the second see the first one's table.
    PERFORM pg_advisory_xact_lock(hashtextextended('holdfast.transition', 0));
    CONTINUE WHEN to_regclass('holdfast.' || partition_name) IS NOT NULL;
    -- Waits for flushes that have written to the default partition and would otherwise commit between the move and the attach, which then fails.
    LOCK TABLE holdfast.transition_default IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.transition INCLUDING DEFAULTS)', partition_name);
    EXECUTE format(
      'WITH moved AS (DELETE FROM holdfast.transition_default WHERE flushed_at >= %L AND flushed_at < %L RETURNING *)
       INSERT INTO holdfast.%I SELECT * FROM moved',
      day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC', partition_name);
    EXECUTE format(
      'ALTER TABLE holdfast.transition ATTACH PARTITION holdfast.%I FOR VALUES FROM (%L) TO (%L)',
      partition_name, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    made := made + 1;
  END LOOP;
  RETURN made;
END $function$;

CREATE OR REPLACE FUNCTION holdfast.free_gate_slot()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
AS $function$
BEGIN
  IF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' AND NEW.status OPERATOR(pg_catalog.=) 'executing'
    AND NEW.concurrency_key OPERATOR(pg_catalog.=) OLD.concurrency_key
  THEN
    -- The same worker goes on with the next step under its slot.
    UPDATE holdfast.gate_slot SET holder_epoch = NEW.claim_epoch
    WHERE project_id OPERATOR(pg_catalog.=) OLD.project_id AND key OPERATOR(pg_catalog.=) OLD.concurrency_key
      AND slot OPERATOR(pg_catalog.=) OLD.gate_slot
      AND holder_id OPERATOR(pg_catalog.=) OLD.id AND holder_epoch OPERATOR(pg_catalog.=) OLD.claim_epoch;
  ELSE
    UPDATE holdfast.gate_slot SET holder_id = NULL, holder_epoch = NULL, changed_at = pg_catalog.now()
    WHERE project_id OPERATOR(pg_catalog.=) OLD.project_id AND key OPERATOR(pg_catalog.=) OLD.concurrency_key
      AND slot OPERATOR(pg_catalog.=) OLD.gate_slot
      AND holder_id OPERATOR(pg_catalog.=) OLD.id AND holder_epoch OPERATOR(pg_catalog.=) OLD.claim_epoch;
  END IF;
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION holdfast.insert_instances(into_project bigint, path text, machines text[], versions integer[], queues text[], states jsonb[], priorities integer[], eligible_ats timestamp with time zone[], correlation_keys text[], correlation_scopes text[], concurrency_keys text[], rate_keys text[], rate_weights integer[], trace text, notify boolean)
 RETURNS TABLE(place integer, instance_id bigint, inserted boolean)
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
DECLARE
  complaint text;
  known text;
  ids bigint[];
  made boolean[];
  still_open boolean[];
  fresh integer;
  ready text[];
  due timestamptz;
  all_ready text[] := '{}';
  first_due timestamptz;
  known_trace constant text :=
    CASE WHEN trace ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN trace END; -- as a header that is none: ignored
BEGIN
  SELECT CASE WHEN path IS NULL THEN '' ELSE format('%s.%s.', path, g.ord - 1) END || c.text INTO complaint
  FROM unnest(machines, versions, queues, priorities, eligible_ats, correlation_keys, correlation_scopes, concurrency_keys, rate_keys, rate_weights)
    WITH ORDINALITY AS g (machine, version, queue, priority, eligible_at, correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, ord)
  CROSS JOIN LATERAL (SELECT concat_ws('; ',
    CASE WHEN coalesce(length(g.machine), 0) NOT BETWEEN 1 AND 200 THEN 'machine: expected a name of 1 to 200 characters' END,
    CASE WHEN g.version < 1 THEN 'version: expected 1 or more' END,
    CASE WHEN length(g.queue) NOT BETWEEN 1 AND 200 THEN 'queue: expected a name of 1 to 200 characters' END,
    CASE WHEN g.priority NOT BETWEEN -32768 AND 32767 THEN 'priority: expected -32768 to 32767' END,
    CASE WHEN g.eligible_at NOT BETWEEN '0001-01-01T00:00:00Z' AND '9999-12-31T23:59:59.999999Z'
      THEN 'eligible_at: expected an instant of the years 1 to 9999' END,
    CASE WHEN length(g.correlation_key) NOT BETWEEN 1 AND 500 THEN 'correlation_key: expected 1 to 500 characters' END,
    CASE WHEN NOT g.correlation_scope::text[] <@ '{done,failed,cancelled}'::text[] OR cardinality(g.correlation_scope::text[]) > 3
      THEN 'correlation_scope: expected at most three of done, failed, cancelled' END,
    CASE WHEN length(g.concurrency_key) NOT BETWEEN 1 AND 500 THEN 'concurrency_key: expected 1 to 500 characters' END,
    CASE WHEN length(split_part(g.rate_key, ':', 1)) NOT BETWEEN 1 AND 200 OR length(g.rate_key) > 500
      THEN 'rate_limit: expected a name of 1 to 200 characters, with its partition at most 500' END,
    CASE WHEN g.rate_weight NOT BETWEEN 1 AND 1000000000 THEN 'rate_weight: expected 1 to 1000000000' END,
    CASE WHEN g.rate_weight IS NOT NULL AND g.rate_key IS NULL THEN 'rate_weight: needs a rate_limit that it is taken from' END
  ) AS text) c
  WHERE c.text <> '' ORDER BY g.ord LIMIT 1;
  IF complaint IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF400', MESSAGE = complaint, HINT = 'Nothing was inserted.';
  END IF;
  PERFORM holdfast.refuse_json(g.state, CASE WHEN path IS NULL THEN '' ELSE format('%s.%s.', path, g.ord - 1) END || 'state', 'HF400')
  FROM unnest(states) WITH ORDINALITY AS g (state, ord);

  SELECT string_agg(u.machine, ', ') INTO complaint FROM (
    SELECT DISTINCT g.machine FROM unnest(machines, versions) AS g (machine, version)
    WHERE EXISTS (SELECT FROM holdfast.machine) AND NOT EXISTS (
      SELECT FROM holdfast.machine m WHERE m.name = g.machine AND (g.version IS NULL OR m.version = g.version)
    ) ORDER BY 1 LIMIT 20
  ) u;
  IF complaint IS NOT NULL THEN
    SELECT CASE WHEN count(*) > 20 THEN ', among others' ELSE '' END || ': ' || string_agg(d.shown, ', ') FILTER (WHERE d.ord <= 20) INTO known
    FROM (
      SELECT format('%s/%s', m.name, m.version) AS shown, row_number() OVER (ORDER BY m.name = ANY (machines) DESC, m.name, m.version) AS ord
      FROM holdfast.machine m
    ) d;
    RAISE EXCEPTION USING ERRCODE = 'HF414', MESSAGE = format('no scheduler has declared %s (in that version); nothing was inserted', complaint),
      HINT = format('Declared are%s. Deploy a scheduler that exports it, or mend the name.', known);
  END IF;

  SELECT string_agg(DISTINCT g.rate_key || CASE WHEN p.name IS NULL THEN '' ELSE format(' (weight %s, burst %s)', coalesce(g.rate_weight, 1), p.burst) END, ', ')
  INTO complaint
  FROM unnest(rate_keys, rate_weights) AS g (rate_key, rate_weight)
  LEFT JOIN holdfast.limit_policy p ON p.project_id = into_project AND p.kind = 'rate' AND p.name = split_part(g.rate_key, ':', 1)
  WHERE g.rate_key IS NOT NULL AND coalesce(coalesce(g.rate_weight, 1) > p.burst, true);
  IF complaint IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF420',
      MESSAGE = format('the project has no such rate limit, or its burst is smaller than the weight: %s; nothing was inserted', left(complaint, 1000)),
      HINT = 'Declare the limit (PUT /v1/limits/rate/NAME), or ask for less.';
  END IF;

  SELECT array_agg(nextval('holdfast.instance_id_seq')), array_agg(false), array_agg(true) INTO ids, made, still_open
  FROM generate_series(1, cardinality(machines));
  -- An occupant may end between the insert and the look at it; each try meets another one at most.
  FOR attempt IN 1..5 LOOP
    WITH added AS (
      INSERT INTO holdfast.instance AS n (
        id, project_id, machine, version, queue, state, priority, status, eligible_at,
        correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, traceparent
      ) OVERRIDING SYSTEM VALUE
      SELECT g.id, into_project, g.machine, coalesce(g.version, declared.version, 1), coalesce(g.queue, declared.queue, 'default'),
        coalesce(g.state, '{}'), coalesce(g.priority, 0),
        CASE WHEN g.eligible_at > now() THEN 'scheduled' ELSE 'runnable' END::holdfast.instance_status, coalesce(g.eligible_at, now()),
        g.correlation_key, coalesce(g.correlation_scope::holdfast.instance_status[], '{}'), g.concurrency_key, g.rate_key,
        coalesce(g.rate_weight, 1), known_trace
      FROM unnest(
        ids, machines, versions, queues, states, priorities, eligible_ats, correlation_keys, correlation_scopes, concurrency_keys, rate_keys, rate_weights
      ) WITH ORDINALITY AS g (
        id, machine, version, queue, state, priority, eligible_at, correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, ord
      )
      LEFT JOIN LATERAL (
        SELECT m.version, m.queue FROM holdfast.machine m
        WHERE m.name = g.machine AND (g.version IS NULL OR m.version = g.version)
        ORDER BY m.version DESC LIMIT 1
      ) declared ON true
      WHERE still_open[g.ord]
      ORDER BY g.correlation_key, g.ord
      ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
      RETURNING n.queue, n.status, n.eligible_at
    )
    SELECT count(*), array_agg(DISTINCT a.queue) FILTER (WHERE a.status = 'runnable'), min(a.eligible_at) FILTER (WHERE a.status = 'scheduled')
    INTO fresh, ready, due FROM added a;
    all_ready := all_ready || ready;
    first_due := least(first_due, due);
    IF fresh = cardinality(ids) THEN
      made := still_open;
      still_open := '{}';
      EXIT;
    END IF;

    -- A statement of its own, because an occupant may have committed after the insert's snapshot.
    SELECT array_agg(coalesce(f.id, o.id, g.id) ORDER BY g.ord), array_agg(made[g.ord] OR f.id IS NOT NULL ORDER BY g.ord),
      array_agg(still_open[g.ord] AND f.id IS NULL AND o.id IS NULL ORDER BY g.ord)
    INTO ids, made, still_open
    FROM unnest(ids, correlation_keys) WITH ORDINALITY AS g (id, correlation_key, ord)
    LEFT JOIN LATERAL (SELECT i.id FROM holdfast.instance i WHERE still_open[g.ord] AND i.id = g.id OFFSET 0) f ON true
    LEFT JOIN LATERAL (
      SELECT i.id FROM holdfast.instance i
      WHERE still_open[g.ord] AND f.id IS NULL AND i.project_id = into_project AND i.correlation_guard = g.correlation_key
      OFFSET 0
    ) o ON true;
    EXIT WHEN true <> ALL (still_open);
  END LOOP;
  IF true = ANY (still_open) THEN
    RAISE EXCEPTION USING ERRCODE = 'HF409', MESSAGE = 'a correlation key kept changing hands while it was being inserted',
      HINT = 'Try the transaction again.';
  END IF;

  IF notify THEN
    PERFORM pg_notify('holdfast_runnable', q.name) FROM (SELECT DISTINCT unnest(all_ready)) AS q (name);
    IF first_due IS NOT NULL THEN
      PERFORM pg_notify('holdfast_timer', ceil(greatest(extract(epoch FROM first_due - now()), 0) * 1000)::bigint::text);
    END IF;
  END IF;
  RETURN QUERY SELECT (g.ord - 1)::integer, g.id, g.made FROM unnest(ids, made) WITH ORDINALITY AS g (id, made, ord) ORDER BY g.ord;
END $function$;

CREATE OR REPLACE FUNCTION holdfast.refuse_json(given jsonb, what text, invalid text)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  shown constant text := given::text;
  bytes integer := octet_length(shown);
BEGIN
  IF bytes <= 256 THEN
    RETURN; -- too short for 129 levels, and for the 309 digits that a number beyond a double is written with
  END IF;
  IF bytes > 524288 THEN
    -- jsonb shows itself with a blank after each comma and colon; what counts is the JSON without them.
    -- They are a third of it at most, so twice the limit is over it either way.
    IF bytes <= 1048576 THEN
      bytes := octet_length(regexp_replace(shown, '("(?:[^"\\]|\\.)*")|\s+', '\1', 'g'));
    END IF;
    IF bytes > 524288 THEN
      RAISE EXCEPTION USING ERRCODE = 'HF413', MESSAGE = format('%s is %s bytes of JSON; at most 524288 are stored', what, bytes),
        HINT = 'Keep large data elsewhere and store its address.';
    END IF;
  END IF;
  IF jsonb_path_exists(given, 'strict $.**{128 to last} ? (@.type() == "object" || @.type() == "array")') THEN
    RAISE EXCEPTION USING ERRCODE = invalid, MESSAGE = format('%s is nested deeper than 128 levels', what);
  END IF;
  IF jsonb_path_exists(given, 'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))') THEN
    RAISE EXCEPTION USING ERRCODE = invalid, MESSAGE = format('%s has a number that is too large for a double', what),
      HINT = 'Write it as a text.';
  END IF;
END $function$;

CREATE OR REPLACE FUNCTION holdfast.signal(project text, name text, payload jsonb DEFAULT '{}'::jsonb, id bigint DEFAULT NULL::bigint, correlation_key text DEFAULT NULL::text, dedup_key text DEFAULT NULL::text, traceparent text DEFAULT NULL::text, notify boolean DEFAULT false, missing_ok boolean DEFAULT false, OUT delivered boolean, OUT duplicate boolean)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
#variable_conflict use_column
DECLARE
  of_project constant bigint := holdfast.writable_project(project);
  target record;
  woken text;
  complaint constant text := concat_ws('; ',
    CASE WHEN coalesce(length(signal.name), 0) NOT BETWEEN 1 AND 200 THEN 'name: expected 1 to 200 characters' END,
    CASE WHEN num_nonnulls(signal.id, signal.correlation_key) <> 1 THEN 'give exactly one of id and correlation_key' END,
    CASE WHEN length(signal.correlation_key) NOT BETWEEN 1 AND 500 THEN 'correlation_key: expected 1 to 500 characters' END,
    CASE WHEN length(signal.dedup_key) NOT BETWEEN 1 AND 500 THEN 'dedup_key: expected 1 to 500 characters' END);
BEGIN
  IF complaint <> '' THEN
    RAISE EXCEPTION USING ERRCODE = 'HF410', MESSAGE = complaint, HINT = 'The signal was not stored.';
  END IF;
  PERFORM holdfast.refuse_json(signal.payload, 'payload', 'HF410');

  IF signal.id IS NOT NULL THEN
    SELECT i.id INTO target FROM holdfast.instance i
    WHERE i.id = signal.id AND i.project_id = of_project AND i.status NOT IN ('done', 'failed', 'cancelled') FOR NO KEY UPDATE;
  ELSE
    SELECT i.id INTO target FROM holdfast.instance i
    WHERE i.correlation_guard = signal.correlation_key AND i.project_id = of_project AND i.status NOT IN ('done', 'failed', 'cancelled')
    FOR NO KEY UPDATE;
  END IF;
  delivered := target.id IS NOT NULL;
  duplicate := false;
  IF NOT delivered THEN
    IF coalesce(missing_ok, false) THEN
      RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'HF404', MESSAGE = format('there is no live instance %s in project %L; the signal was not stored',
        coalesce(signal.id::text, format('with the correlation key %L', signal.correlation_key)), project),
      HINT = 'It has ended, or there never was one. With missing_ok => true that is an answer (delivered = false) and no error.';
  END IF;
  IF signal.dedup_key IS NOT NULL THEN
    INSERT INTO holdfast.signal_receipt (target_id, dedup_key) VALUES (target.id, signal.dedup_key) ON CONFLICT (target_id, dedup_key) DO NOTHING;
    IF NOT FOUND THEN
      duplicate := true;
      RETURN;
    END IF;
  END IF;
  INSERT INTO holdfast.signal (target_id, name, payload, dedup_key, traceparent) VALUES (
    target.id, signal.name, coalesce(signal.payload, '{}'), signal.dedup_key,
    CASE WHEN signal.traceparent ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN signal.traceparent END
  );
  UPDATE holdfast.instance i SET status = 'runnable', eligible_at = now(), updated_at = now()
  WHERE i.id = target.id AND i.status = 'awaiting_signal' AND signal.name = ANY (i.awaits)
  RETURNING i.queue INTO woken;
  IF notify AND woken IS NOT NULL THEN
    PERFORM pg_notify('holdfast_runnable', woken);
  END IF;
END $function$;
COMMENT ON FUNCTION holdfast.signal(text,text,jsonb,bigint,text,text,text,boolean,boolean) IS
  'Puts a signal into the inbox of a live instance, in the caller''s transaction, and wakes the instance if it waits for that name. docs/sql.md.';

CREATE OR REPLACE FUNCTION holdfast.writable_project(project text)
 RETURNS bigint
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  found record;
  everywhere constant boolean := pg_has_role(session_user, 'holdfast_enqueue', 'MEMBER');
BEGIN
  SELECT p.id, p.suspended_at, everywhere OR EXISTS (
    SELECT FROM holdfast.project_role r JOIN pg_roles g ON g.rolname = r.role_name
    WHERE r.project_id = p.id AND pg_has_role(session_user, g.oid, 'MEMBER')
  ) AS allowed
  INTO found FROM holdfast.project p WHERE p.name = writable_project.project;
  IF NOT coalesce(found.allowed, everywhere) THEN
    -- Whether there is such a project is nobody's business who may not write to it.
    RAISE EXCEPTION USING ERRCODE = 'HF403', MESSAGE = format('%s may not write to a project %L', session_user, project),
      HINT = 'Insert the login, or a role that it is a member of, into holdfast.project_role for that project; or mend the name.';
  ELSIF found.id IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF404', MESSAGE = format('there is no project %L', project),
      HINT = 'Create it (holdfast project create NAME, or POST /manage/v1/projects), or mend the name.';
  ELSIF found.suspended_at IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HF403', MESSAGE = format('project %L is suspended', project),
      HINT = 'An operator has stopped new work of it; holdfast project resume NAME lets it go on.';
  END IF;
  RETURN found.id;
END $function$;

-- Triggers --------------------------------------------------------------------------------------------------------

CREATE TRIGGER instance_deleted_frees_gate_slot AFTER DELETE ON holdfast.instance FOR EACH ROW WHEN (old.status = 'executing'::holdfast.instance_status AND old.gate_slot IS NOT NULL) EXECUTE FUNCTION holdfast.free_gate_slot();

CREATE TRIGGER instance_frees_gate_slot AFTER UPDATE OF status, claim_epoch, concurrency_key ON holdfast.instance FOR EACH ROW WHEN (old.status = 'executing'::holdfast.instance_status AND old.gate_slot IS NOT NULL AND (new.status <> 'executing'::holdfast.instance_status OR new.claim_epoch <> old.claim_epoch OR new.concurrency_key IS DISTINCT FROM old.concurrency_key)) EXECUTE FUNCTION holdfast.free_gate_slot();

-- Grants ----------------------------------------------------------------------------------------------------------

-- holdfast_api
GRANT USAGE ON SCHEMA holdfast TO holdfast_api;
GRANT INSERT, SELECT ON holdfast.api_token TO holdfast_api;
GRANT UPDATE (revoked_at) ON holdfast.api_token TO holdfast_api;
GRANT INSERT, SELECT ON holdfast.cascade TO holdfast_api;
GRANT SELECT ON holdfast.gate_slot TO holdfast_api;
GRANT INSERT, SELECT ON holdfast.instance TO holdfast_api;
GRANT UPDATE (eligible_at, await_deadline, updated_at, attempt, reclaims, children_pending, status, error, awaits, parent_epoch, throttled_until, cancel_requested_at, cancel_reason) ON holdfast.instance TO holdfast_api;
GRANT INSERT, SELECT ON holdfast.limit_policy TO holdfast_api;
GRANT UPDATE (rate, period_ms, burst, shards, capacity, revision, updated_at) ON holdfast.limit_policy TO holdfast_api;
GRANT SELECT ON holdfast.machine TO holdfast_api;
GRANT SELECT ON holdfast.outcome_quarantine TO holdfast_api;
GRANT DELETE, INSERT, SELECT ON holdfast.process TO holdfast_api;
GRANT UPDATE (heartbeat_at) ON holdfast.process TO holdfast_api;
GRANT INSERT, SELECT ON holdfast.project TO holdfast_api;
GRANT UPDATE (suspended_at) ON holdfast.project TO holdfast_api;
GRANT INSERT, SELECT ON holdfast.queue TO holdfast_api;
GRANT UPDATE (paused_at, updated_at) ON holdfast.queue TO holdfast_api;
GRANT SELECT ON holdfast.rate_bucket TO holdfast_api;
GRANT DELETE, INSERT, SELECT ON holdfast.schedule TO holdfast_api;
GRANT UPDATE (revision, cron, timezone, machine, version, input, queue, priority, concurrency_key, catch_up, overlap, next_at, due_at, paused_at, failures, last_error, last_error_at, updated_at) ON holdfast.schedule TO holdfast_api;
GRANT SELECT ON holdfast.schema_migration TO holdfast_api;
GRANT DELETE, INSERT, SELECT ON holdfast.signal TO holdfast_api;
GRANT DELETE, INSERT, SELECT ON holdfast.signal_receipt TO holdfast_api;
GRANT INSERT, SELECT ON holdfast.transition TO holdfast_api;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_api;

-- holdfast_enqueue, which cannot log in
GRANT USAGE ON SCHEMA holdfast TO holdfast_enqueue;
GRANT INSERT, SELECT ON holdfast.instance TO holdfast_enqueue;
GRANT UPDATE (eligible_at, updated_at, status) ON holdfast.instance TO holdfast_enqueue;
GRANT SELECT ON holdfast.limit_policy TO holdfast_enqueue;
GRANT SELECT ON holdfast.machine TO holdfast_enqueue;
GRANT SELECT ON holdfast.project TO holdfast_enqueue;
GRANT INSERT, SELECT ON holdfast.signal TO holdfast_enqueue;
GRANT INSERT, SELECT ON holdfast.signal_receipt TO holdfast_enqueue;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_enqueue;
GRANT EXECUTE ON FUNCTION holdfast.enqueue(text,text,jsonb,integer,text,integer,interval,timestamp with time zone,text,text[],text,text,integer,text,boolean) TO holdfast_enqueue;
GRANT EXECUTE ON FUNCTION holdfast.enqueue_many(text,jsonb,text,boolean) TO holdfast_enqueue;
GRANT EXECUTE ON FUNCTION holdfast.signal(text,text,jsonb,bigint,text,text,text,boolean,boolean) TO holdfast_enqueue;

-- holdfast_flusher
GRANT USAGE ON SCHEMA holdfast TO holdfast_flusher;
GRANT INSERT, SELECT ON holdfast.cascade TO holdfast_flusher;
GRANT SELECT ON holdfast.gate_slot TO holdfast_flusher;
GRANT DELETE, INSERT, SELECT ON holdfast.instance TO holdfast_flusher;
GRANT UPDATE (eligible_at, lease_expires_at, await_deadline, updated_at, version, attempt, reclaims, children_pending, rate_weight, status, step, state, result, error, claimed_by, concurrency_key, rate_key, awaits, gate_slot) ON holdfast.instance TO holdfast_flusher;
GRANT SELECT ON holdfast.limit_policy TO holdfast_flusher;
GRANT SELECT ON holdfast.machine TO holdfast_flusher;
GRANT DELETE, SELECT ON holdfast.outcome TO holdfast_flusher;
GRANT UPDATE (seq) ON holdfast.outcome TO holdfast_flusher;
GRANT INSERT ON holdfast.outcome_quarantine TO holdfast_flusher;
GRANT DELETE, INSERT, SELECT ON holdfast.process TO holdfast_flusher;
GRANT UPDATE (heartbeat_at) ON holdfast.process TO holdfast_flusher;
GRANT SELECT ON holdfast.rate_bucket TO holdfast_flusher;
GRANT SELECT ON holdfast.schema_migration TO holdfast_flusher;
GRANT DELETE, SELECT ON holdfast.signal TO holdfast_flusher;
GRANT DELETE, SELECT ON holdfast.signal_receipt TO holdfast_flusher;
GRANT INSERT ON holdfast.transition TO holdfast_flusher;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_flusher;
ALTER ROLE holdfast_flusher SET enable_bitmapscan = off;
ALTER ROLE holdfast_flusher SET enable_hashjoin = off;
ALTER ROLE holdfast_flusher SET enable_memoize = off;
ALTER ROLE holdfast_flusher SET enable_mergejoin = off;
ALTER ROLE holdfast_flusher SET enable_seqscan = off;
ALTER ROLE holdfast_flusher SET jit = off;
ALTER ROLE holdfast_flusher SET plan_cache_mode = force_generic_plan;

-- holdfast_formation_worker
GRANT USAGE ON SCHEMA holdfast TO holdfast_formation_worker;
GRANT DELETE, INSERT, SELECT ON holdfast.process TO holdfast_formation_worker;
GRANT UPDATE (heartbeat_at) ON holdfast.process TO holdfast_formation_worker;
GRANT SELECT ON holdfast.schema_migration TO holdfast_formation_worker;

-- holdfast_reaper
GRANT USAGE ON SCHEMA holdfast TO holdfast_reaper;
GRANT DELETE, INSERT, SELECT ON holdfast.cascade TO holdfast_reaper;
GRANT UPDATE (requested_at) ON holdfast.cascade TO holdfast_reaper;
GRANT DELETE, SELECT ON holdfast.gate_slot TO holdfast_reaper;
GRANT UPDATE (changed_at) ON holdfast.gate_slot TO holdfast_reaper;
GRANT DELETE, SELECT ON holdfast.instance TO holdfast_reaper;
GRANT UPDATE (eligible_at, lease_expires_at, await_deadline, updated_at, attempt, reclaims, children_pending, status, error, claimed_by, awaits, throttled_until, cancel_requested_at, cancel_reason) ON holdfast.instance TO holdfast_reaper;
GRANT SELECT ON holdfast.limit_policy TO holdfast_reaper;
GRANT SELECT ON holdfast.machine TO holdfast_reaper;
GRANT SELECT ON holdfast.outcome TO holdfast_reaper;
GRANT DELETE, INSERT, SELECT ON holdfast.process TO holdfast_reaper;
GRANT UPDATE (heartbeat_at) ON holdfast.process TO holdfast_reaper;
GRANT DELETE, SELECT ON holdfast.rate_bucket TO holdfast_reaper;
GRANT UPDATE (refilled_at) ON holdfast.rate_bucket TO holdfast_reaper;
GRANT DELETE, SELECT ON holdfast.schedule_run TO holdfast_reaper;
GRANT UPDATE (fired_at) ON holdfast.schedule_run TO holdfast_reaper;
GRANT SELECT ON holdfast.schema_migration TO holdfast_reaper;
GRANT DELETE, SELECT ON holdfast.signal TO holdfast_reaper;
GRANT DELETE, SELECT ON holdfast.signal_receipt TO holdfast_reaper;
GRANT INSERT ON holdfast.transition TO holdfast_reaper;
GRANT EXECUTE ON FUNCTION holdfast.drop_transition_partitions(integer) TO holdfast_reaper;
GRANT EXECUTE ON FUNCTION holdfast.ensure_transition_partitions(integer) TO holdfast_reaper;
ALTER ROLE holdfast_reaper SET enable_bitmapscan = off;
ALTER ROLE holdfast_reaper SET enable_hashjoin = off;
ALTER ROLE holdfast_reaper SET enable_memoize = off;
ALTER ROLE holdfast_reaper SET enable_mergejoin = off;
ALTER ROLE holdfast_reaper SET enable_seqscan = off;
ALTER ROLE holdfast_reaper SET jit = off;
ALTER ROLE holdfast_reaper SET plan_cache_mode = force_generic_plan;

-- holdfast_scheduler
GRANT USAGE ON SCHEMA holdfast TO holdfast_scheduler;
GRANT INSERT, SELECT ON holdfast.gate_slot TO holdfast_scheduler;
GRANT UPDATE (holder_id, holder_epoch, changed_at) ON holdfast.gate_slot TO holdfast_scheduler;
GRANT SELECT ON holdfast.instance TO holdfast_scheduler;
GRANT UPDATE (claim_epoch, lease_expires_at, updated_at, status, claimed_by, throttled_until, gate_slot) ON holdfast.instance TO holdfast_scheduler;
GRANT INSERT (id, project_id, version, priority, machine, queue, state, concurrency_key, correlation_key) ON holdfast.instance TO holdfast_scheduler;
GRANT SELECT ON holdfast.limit_policy TO holdfast_scheduler;
GRANT INSERT, SELECT ON holdfast.machine TO holdfast_scheduler;
GRANT UPDATE (queue, max_reclaims, seen_at) ON holdfast.machine TO holdfast_scheduler;
GRANT INSERT, SELECT ON holdfast.outcome TO holdfast_scheduler;
GRANT DELETE, INSERT, SELECT ON holdfast.process TO holdfast_scheduler;
GRANT UPDATE (heartbeat_at) ON holdfast.process TO holdfast_scheduler;
GRANT SELECT (id, suspended_at) ON holdfast.project TO holdfast_scheduler;
GRANT SELECT ON holdfast.queue TO holdfast_scheduler;
GRANT INSERT, SELECT ON holdfast.rate_bucket TO holdfast_scheduler;
GRANT UPDATE (revision, tokens, capacity, refilled_at) ON holdfast.rate_bucket TO holdfast_scheduler;
GRANT SELECT ON holdfast.schedule TO holdfast_scheduler;
GRANT UPDATE (revision, next_at, due_at, last_at, last_instance_id, skipped_at, skipped_why, failures, last_error, last_error_at) ON holdfast.schedule TO holdfast_scheduler;
GRANT INSERT, SELECT ON holdfast.schedule_run TO holdfast_scheduler;
GRANT SELECT ON holdfast.schema_migration TO holdfast_scheduler;
GRANT SELECT ON holdfast.signal TO holdfast_scheduler;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_scheduler;
ALTER ROLE holdfast_scheduler SET enable_bitmapscan = off;
ALTER ROLE holdfast_scheduler SET enable_hashjoin = off;
ALTER ROLE holdfast_scheduler SET enable_memoize = off;
ALTER ROLE holdfast_scheduler SET enable_mergejoin = off;
ALTER ROLE holdfast_scheduler SET enable_seqscan = off;
ALTER ROLE holdfast_scheduler SET jit = off;
ALTER ROLE holdfast_scheduler SET plan_cache_mode = force_generic_plan;

-- holdfast_sealer
GRANT USAGE ON SCHEMA holdfast TO holdfast_sealer;
GRANT DELETE, INSERT, SELECT ON holdfast.process TO holdfast_sealer;
GRANT UPDATE (heartbeat_at) ON holdfast.process TO holdfast_sealer;
GRANT SELECT ON holdfast.schema_migration TO holdfast_sealer;

-- holdfast_sql, which cannot log in
GRANT USAGE ON SCHEMA holdfast TO holdfast_sql;
GRANT EXECUTE ON FUNCTION holdfast.enqueue(text,text,jsonb,integer,text,integer,interval,timestamp with time zone,text,text[],text,text,integer,text,boolean) TO holdfast_sql;
GRANT EXECUTE ON FUNCTION holdfast.enqueue_many(text,jsonb,text,boolean) TO holdfast_sql;
GRANT EXECUTE ON FUNCTION holdfast.signal(text,text,jsonb,bigint,text,text,text,boolean,boolean) TO holdfast_sql;
