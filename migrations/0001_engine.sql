-- safe: creates only
-- The engine's tables, their grants, and nothing else. Read `schema.sql` beside this file for the dumped result.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Words ------------------------------------------------------------------------------------------------------------

CREATE TYPE holdfast.instance_status AS ENUM (
  'scheduled', 'runnable', 'throttled', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled'
);
CREATE TYPE holdfast.outcome_kind AS ENUM ('next', 'sleep', 'retry', 'await_signal', 'done', 'fail', 'cancel');

-- Tenants ----------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.project (
  id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT project_pkey PRIMARY KEY,
  name         text NOT NULL CONSTRAINT project_name UNIQUE
               CONSTRAINT project_name_shape CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  suspended_at timestamptz,
  created_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE holdfast.project IS
  'A tenant. Written by the api (management listener); read with every token. Never deleted, which is why instance.project_id needs no foreign key: the key-share lock of one would make every insert of a busy project write the same row.';

CREATE TABLE holdfast.api_token (
  id         bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT api_token_pkey PRIMARY KEY,
  project_id bigint CONSTRAINT api_token_project REFERENCES holdfast.project (id),
  access     text NOT NULL CONSTRAINT api_token_access CHECK (access IN ('read_only', 'read_write', 'operator')),
  sha256     bytea NOT NULL CONSTRAINT api_token_sha256 UNIQUE
             CONSTRAINT api_token_sha256_length CHECK (octet_length(sha256) = 32),
  label      text CONSTRAINT api_token_label_length CHECK (length(label) <= 200),
  created_at timestamptz NOT NULL DEFAULT now(),
  revoked_at timestamptz,
  CONSTRAINT api_token_operator_has_no_project CHECK ((access = 'operator') = (project_id IS NULL))
);
COMMENT ON TABLE holdfast.api_token IS
  'Bearer tokens, by their SHA-256 only. Written by the api (management listener); api_token_sha256 serves queries/engine/authenticate.';

-- What the deployment can run ----------------------------------------------------------------------------------------

CREATE TABLE holdfast.machine (
  name         text NOT NULL CONSTRAINT machine_name_length CHECK (length(name) BETWEEN 1 AND 200),
  version      integer NOT NULL CONSTRAINT machine_version_positive CHECK (version > 0),
  queue        text NOT NULL CONSTRAINT machine_queue_length CHECK (length(queue) BETWEEN 1 AND 200),
  max_reclaims integer NOT NULL DEFAULT 5 CONSTRAINT machine_max_reclaims_range CHECK (max_reclaims BETWEEN 0 AND 1000000),
  declared_at  timestamptz NOT NULL DEFAULT now(),
  seen_at      timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT machine_pkey PRIMARY KEY (name, version)
);
COMMENT ON TABLE holdfast.machine IS
  'Machines that some scheduler has declared. Written by schedulers as they start; read by inserts (queue and version defaults, unknown_machine) and by the reaper (max_reclaims).';

CREATE TABLE holdfast.queue (
  name       text NOT NULL CONSTRAINT queue_pkey PRIMARY KEY CONSTRAINT queue_name_length CHECK (length(name) BETWEEN 1 AND 200),
  paused_at  timestamptz,
  updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE holdfast.queue IS
  'Settings of a queue; a queue without a row has none. Written by the api (management listener), read by every claim.';

CREATE TABLE holdfast.process (
  id           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT process_pkey PRIMARY KEY,
  role         text NOT NULL,
  host         text NOT NULL,
  pid          integer NOT NULL,
  version      text NOT NULL,
  pool_max     integer NOT NULL CONSTRAINT process_pool_max_positive CHECK (pool_max > 0),
  started_at   timestamptz NOT NULL DEFAULT now(),
  heartbeat_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE holdfast.process IS
  'One row per running process, heart-beaten by it, removed by it at a graceful stop and by the reaper when it is silent.';

-- Instances ----------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.instance (
  id                bigint GENERATED ALWAYS AS IDENTITY,
  project_id        bigint NOT NULL,
  parent_id         bigint,
  claim_epoch       bigint NOT NULL DEFAULT 0,
  eligible_at       timestamptz NOT NULL DEFAULT now(),
  lease_expires_at  timestamptz,
  await_deadline    timestamptz,
  inserted_at       timestamptz NOT NULL DEFAULT now(),
  updated_at        timestamptz NOT NULL DEFAULT now(),
  version           integer NOT NULL DEFAULT 1,
  attempt           integer NOT NULL DEFAULT 0,
  reclaims          integer NOT NULL DEFAULT 0,
  children_pending  integer NOT NULL DEFAULT 0,
  rate_weight       integer NOT NULL DEFAULT 1,
  status            holdfast.instance_status NOT NULL DEFAULT 'runnable',
  priority          smallint NOT NULL DEFAULT 0,
  machine           text NOT NULL,
  step              text NOT NULL DEFAULT 'start',
  queue             text NOT NULL DEFAULT 'default',
  state             jsonb NOT NULL DEFAULT '{}',
  result            jsonb,
  error             jsonb,
  claimed_by        text,
  concurrency_key   text,
  rate_key          text,
  awaits            text[],
  correlation_key   text,
  correlation_scope holdfast.instance_status[] NOT NULL DEFAULT '{}',
  correlation_guard text GENERATED ALWAYS AS (
    CASE WHEN status NOT IN ('done', 'failed', 'cancelled') OR status = ANY (correlation_scope) THEN correlation_key END
  ) STORED,
  traceparent       text,
  CONSTRAINT instance_pkey PRIMARY KEY (id),
  CONSTRAINT instance_executing_is_leased CHECK ((status = 'executing') = (lease_expires_at IS NOT NULL)),
  CONSTRAINT instance_executing_is_claimed CHECK ((status = 'executing') = (claimed_by IS NOT NULL)),
  CONSTRAINT instance_awaiting_names_signals CHECK (status <> 'awaiting_signal' OR cardinality(awaits) > 0),
  CONSTRAINT instance_awaiting_has_children CHECK (status <> 'awaiting_children' OR children_pending > 0),
  CONSTRAINT instance_children_pending_not_negative CHECK (children_pending >= 0),
  CONSTRAINT instance_result_is_of_done CHECK (result IS NULL OR status = 'done'),
  -- A live row always occupies its key: a narrower scope could let two live rows meet on one key later, where no
  -- caller can be told (digest N1).
  CONSTRAINT instance_correlation_scope_is_terminal CHECK (
    correlation_scope <@ ARRAY['done', 'failed', 'cancelled']::holdfast.instance_status[]
  ),
  CONSTRAINT instance_rate_weight_positive CHECK (rate_weight > 0),
  CONSTRAINT instance_words_length CHECK (
    length(machine) BETWEEN 1 AND 200 AND length(step) BETWEEN 1 AND 200 AND length(queue) BETWEEN 1 AND 200
  ),
  CONSTRAINT instance_keys_length CHECK (
    length(concurrency_key) <= 500 AND length(correlation_key) <= 500 AND length(rate_key) <= 500
  )
) WITH (
  -- Three row versions per one-step job (insert, claim, flush), none of them HOT, because `status` is in the predicate of
  -- every index: space on the page does not help, an early vacuum does.
  fillfactor = 90,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE holdfast.instance IS
  'One row per machine instance (a job is a machine of one step). Inserted by the api and by clients; claimed by schedulers; moved by flushers; healed and removed by reapers. Only the primary key is a full unique index and it never changes, so that updates lock FOR NO KEY UPDATE and coexist with the KEY SHARE of foreign keys.';
COMMENT ON COLUMN holdfast.instance.claim_epoch IS
  'Counts claims. An outcome carries the epoch it was made under: a run that lost its lease cannot write, even if the same worker claims again.';
COMMENT ON COLUMN holdfast.instance.awaits IS
  'Signal names of the last park; kept through the wake until the woken step ends, because they decide what the step is shown as awaited.';
COMMENT ON COLUMN holdfast.instance.updated_at IS
  'Last change of status: the claim time of an executing row, the end of a terminal one. Heart-beats do not touch it.';

-- Each index serves one query and its predicate is that query's; docs/indexes.md lists the pairs, a test reads the plans.
CREATE INDEX instance_pick ON holdfast.instance (queue, priority, eligible_at, id) WHERE status = 'runnable';
CREATE INDEX instance_due ON holdfast.instance (eligible_at) WHERE status = 'scheduled';
CREATE INDEX instance_lease ON holdfast.instance (lease_expires_at) WHERE status = 'executing';
CREATE INDEX instance_await_deadline ON holdfast.instance (await_deadline)
  WHERE status = 'awaiting_signal' AND await_deadline IS NOT NULL;
CREATE UNIQUE INDEX instance_concurrency_active ON holdfast.instance (project_id, concurrency_key)
  WHERE status = 'executing' AND concurrency_key IS NOT NULL;
CREATE UNIQUE INDEX instance_correlation ON holdfast.instance (project_id, correlation_guard)
  WHERE correlation_guard IS NOT NULL;
CREATE INDEX instance_parent ON holdfast.instance (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX instance_finished ON holdfast.instance (updated_at) WHERE status IN ('done', 'failed', 'cancelled');
CREATE INDEX instance_project ON holdfast.instance (project_id, id);

ALTER TABLE holdfast.instance
  ADD CONSTRAINT instance_parent_id FOREIGN KEY (parent_id) REFERENCES holdfast.instance (id) ON DELETE SET NULL;

-- Inbox ----------------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.signal (
  id          bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT signal_pkey PRIMARY KEY,
  target_id   bigint NOT NULL CONSTRAINT signal_target_id REFERENCES holdfast.instance (id) ON DELETE CASCADE,
  inserted_at timestamptz NOT NULL DEFAULT now(),
  name        text NOT NULL CONSTRAINT signal_name_length CHECK (length(name) BETWEEN 1 AND 200),
  payload     jsonb NOT NULL DEFAULT '{}',
  dedup_key   text CONSTRAINT signal_dedup_key_length CHECK (length(dedup_key) BETWEEN 1 AND 500),
  traceparent text
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE holdfast.signal IS
  'The inbox of live instances. Written by queries/engine/deliver-signal; read when an instance is claimed; deleted by the flush of the outcome that consumed it, or of the one that ended its instance.';
CREATE UNIQUE INDEX signal_dedup ON holdfast.signal (target_id, dedup_key) WHERE dedup_key IS NOT NULL;
CREATE INDEX signal_target ON holdfast.signal (target_id, id);

CREATE TABLE holdfast.signal_receipt (
  target_id   bigint NOT NULL CONSTRAINT signal_receipt_target_id REFERENCES holdfast.instance (id) ON DELETE CASCADE,
  dedup_key   text NOT NULL,
  received_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT signal_receipt_pkey PRIMARY KEY (target_id, dedup_key)
);
COMMENT ON TABLE holdfast.signal_receipt IS
  'Dedup keys that an instance has received, kept after consumption and as long as the instance: a redelivery is a no-op then too.';

-- Outcomes ---------------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.outcome (
  seq             bigint GENERATED ALWAYS AS IDENTITY,
  instance_id     bigint NOT NULL,
  claim_epoch     bigint NOT NULL,
  delay_ms        bigint CONSTRAINT outcome_delay_range CHECK (delay_ms BETWEEN 0 AND 3155760000000),
  timeout_ms      bigint CONSTRAINT outcome_timeout_range CHECK (timeout_ms BETWEEN 1 AND 3155760000000),
  staged_at       timestamptz NOT NULL DEFAULT now(),
  claimed_ago_us  bigint NOT NULL DEFAULT 0,
  started_ago_us  bigint NOT NULL DEFAULT 0,
  finished_ago_us bigint NOT NULL DEFAULT 0,
  attempt         integer NOT NULL,
  kind            holdfast.outcome_kind NOT NULL,
  keep_history    boolean NOT NULL DEFAULT true,
  worker          text NOT NULL,
  from_step       text NOT NULL,
  step            text CONSTRAINT outcome_step_length CHECK (length(step) BETWEEN 1 AND 200),
  awaits          text[],
  presented       bigint[],
  consumed        bigint[],
  state           jsonb,
  result          jsonb,
  error           jsonb,
  traceparent     text,
  CONSTRAINT outcome_pkey PRIMARY KEY (instance_id, claim_epoch),
  CONSTRAINT outcome_shape CHECK (
    CASE kind
      WHEN 'next' THEN step IS NOT NULL
      WHEN 'sleep' THEN step IS NOT NULL AND delay_ms IS NOT NULL
      WHEN 'retry' THEN delay_ms IS NOT NULL
      WHEN 'await_signal' THEN step IS NOT NULL AND cardinality(awaits) > 0
      WHEN 'done' THEN error IS NULL
      ELSE error IS NOT NULL AND result IS NULL
    END
  )
) WITH (
  fillfactor = 100,
  autovacuum_vacuum_scale_factor = 0.0,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE holdfast.outcome IS
  'What a step answered, waiting to be applied. Appended by schedulers (queries/engine/stage-outcomes), taken and deleted by flushers (queries/engine/flush-outcomes). The primary key makes a second outcome of one claim uncommittable.';
-- Serves the flusher, which takes from the front; see queries/engine/flush-outcomes for its low-water mark.
CREATE INDEX outcome_seq ON holdfast.outcome (seq);

CREATE TABLE holdfast.outcome_quarantine (
  id             bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT outcome_quarantine_pkey PRIMARY KEY,
  instance_id    bigint NOT NULL,
  claim_epoch    bigint NOT NULL,
  outcome        jsonb NOT NULL,
  error          jsonb NOT NULL,
  quarantined_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE holdfast.outcome_quarantine IS
  'Outcomes that the database refused to apply, with its reason. Written by the flusher, which fails the instance visibly in the same transaction; kept for people.';
CREATE INDEX outcome_quarantine_instance ON holdfast.outcome_quarantine (instance_id);

-- History ----------------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.transition (
  flushed_at  timestamptz NOT NULL DEFAULT now(),
  claimed_at  timestamptz,
  started_at  timestamptz,
  finished_at timestamptz,
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
COMMENT ON TABLE holdfast.transition IS
  'History: one row per applied outcome, partitioned by day (UTC). Written by the flusher, and by the reaper for the ends it decides; read by GET /v1/instances/:id/history; dropped by partition.';
CREATE INDEX transition_instance ON holdfast.transition (instance_id, claim_epoch);
-- Catches rows while no reaper has made partitions for days; ensure_transition_partitions moves them out.
CREATE TABLE holdfast.transition_default PARTITION OF holdfast.transition DEFAULT;

CREATE FUNCTION holdfast.ensure_transition_partitions(days_ahead integer) RETURNS integer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
END $$;

CREATE FUNCTION holdfast.drop_transition_partitions(keep_days integer) RETURNS integer
  -- A drop waits for whoever reads the partition, and flushes wait behind it: better tried again in an hour than that.
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
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
END $$;
REVOKE ALL ON FUNCTION holdfast.ensure_transition_partitions(integer), holdfast.drop_transition_partitions(integer) FROM PUBLIC;

SELECT holdfast.ensure_transition_partitions(3);

-- Database roles: one per app, an allow-list each (docs/operations/grants.md) -------------------------------------------------

DO $$
DECLARE
  role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY[
    'holdfast_api', 'holdfast_scheduler', 'holdfast_flusher', 'holdfast_reaper', 'holdfast_formation_worker', 'holdfast_sealer'
  ] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I LOGIN', role_name);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL; -- roles belong to the cluster: another database of it has made this one
    END;
    EXECUTE format('GRANT USAGE ON SCHEMA holdfast TO %I', role_name);
    EXECUTE format('GRANT SELECT ON holdfast.schema_migration TO %I', role_name);
    EXECUTE format('GRANT SELECT, INSERT, DELETE ON holdfast.process TO %I', role_name);
    EXECUTE format('GRANT UPDATE (heartbeat_at) ON holdfast.process TO %I', role_name);
  END LOOP;
  BEGIN
    CREATE ROLE holdfast_enqueue NOLOGIN;
  EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
  END;
END $$;

-- What a developer's own role needs to enqueue and signal in its own transactions: GRANT holdfast_enqueue TO my_app.
GRANT USAGE ON SCHEMA holdfast TO holdfast_enqueue;
GRANT SELECT ON holdfast.project, holdfast.machine TO holdfast_enqueue;
GRANT SELECT, INSERT ON holdfast.instance, holdfast.signal, holdfast.signal_receipt TO holdfast_enqueue;
GRANT UPDATE (status, eligible_at, updated_at) ON holdfast.instance TO holdfast_enqueue;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_enqueue;

GRANT SELECT, INSERT ON holdfast.project, holdfast.api_token, holdfast.queue TO holdfast_api;
GRANT UPDATE (suspended_at) ON holdfast.project TO holdfast_api;
GRANT UPDATE (revoked_at) ON holdfast.api_token TO holdfast_api;
GRANT UPDATE (paused_at, updated_at) ON holdfast.queue TO holdfast_api;
GRANT SELECT ON holdfast.machine, holdfast.transition, holdfast.outcome_quarantine TO holdfast_api;
GRANT SELECT, INSERT ON holdfast.instance, holdfast.signal, holdfast.signal_receipt TO holdfast_api;
GRANT UPDATE (status, eligible_at, updated_at) ON holdfast.instance TO holdfast_api;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_api;

GRANT SELECT ON holdfast.instance, holdfast.signal, holdfast.queue TO holdfast_scheduler;
GRANT UPDATE (status, claim_epoch, claimed_by, lease_expires_at, updated_at) ON holdfast.instance TO holdfast_scheduler;
GRANT INSERT, SELECT ON holdfast.outcome TO holdfast_scheduler;
GRANT SELECT, INSERT ON holdfast.machine TO holdfast_scheduler;
GRANT UPDATE (queue, max_reclaims, seen_at) ON holdfast.machine TO holdfast_scheduler;

GRANT SELECT ON holdfast.instance TO holdfast_flusher;
GRANT UPDATE (status, step, state, result, error, attempt, reclaims, eligible_at, claimed_by, lease_expires_at, awaits,
  await_deadline, rate_key, rate_weight, concurrency_key, children_pending, updated_at, version) ON holdfast.instance TO holdfast_flusher;
GRANT SELECT, DELETE ON holdfast.outcome TO holdfast_flusher;
GRANT UPDATE (seq) ON holdfast.outcome TO holdfast_flusher; -- a row lock needs the privilege on some column; seq is generated always, so it cannot be used
GRANT SELECT, DELETE ON holdfast.signal TO holdfast_flusher;
GRANT INSERT ON holdfast.transition, holdfast.outcome_quarantine TO holdfast_flusher;

GRANT SELECT, DELETE ON holdfast.instance TO holdfast_reaper;
GRANT UPDATE (status, attempt, reclaims, eligible_at, claimed_by, lease_expires_at, await_deadline, awaits, error, updated_at)
  ON holdfast.instance TO holdfast_reaper;
GRANT SELECT ON holdfast.outcome, holdfast.machine TO holdfast_reaper;
GRANT SELECT, DELETE ON holdfast.signal TO holdfast_reaper;
GRANT INSERT ON holdfast.transition TO holdfast_reaper;
GRANT EXECUTE ON FUNCTION holdfast.ensure_transition_partitions(integer), holdfast.drop_transition_partitions(integer) TO holdfast_reaper;

-- Every hot statement is a set of point look-ups by design. On small or freshly analysed tables a generic plan would join by hash
-- over a sequential scan and be 5 to 60 times slower once they grow (LIMITS.md). The apps also send these settings as they connect;
-- here they hold behind a proxy that refuses startup options.
DO $$
DECLARE
  role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY['holdfast_scheduler', 'holdfast_flusher', 'holdfast_reaper'] LOOP
    EXECUTE format('ALTER ROLE %I SET enable_hashjoin = off', role_name);
    EXECUTE format('ALTER ROLE %I SET enable_mergejoin = off', role_name);
    EXECUTE format('ALTER ROLE %I SET enable_seqscan = off', role_name);
    EXECUTE format('ALTER ROLE %I SET enable_memoize = off', role_name);
    EXECUTE format('ALTER ROLE %I SET plan_cache_mode = force_generic_plan', role_name);
    EXECUTE format('ALTER ROLE %I SET jit = off', role_name);
  END LOOP;
END $$;
