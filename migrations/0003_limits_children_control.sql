-- breaking: an old flusher would drop the children and the limits of an outcome that a new scheduler staged
-- squawk-ignore-file require-concurrent-index-creation, require-concurrent-index-deletion, constraint-missing-not-valid
-- It stops the writers anyway (it is breaking), for as long as a scan of the instances takes; in one transaction, so that it is whole or not at all.
-- Gates and rate limits, children, cancellation: their columns, tables, indexes, triggers and grants.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '10min';

-- Instances ----------------------------------------------------------------------------------------------------------

ALTER TABLE holdfast.instance
  ADD COLUMN parent_epoch bigint,
  ADD COLUMN throttled_until timestamptz,
  ADD COLUMN cancel_requested_at timestamptz,
  ADD COLUMN cancel_reason text CONSTRAINT instance_cancel_reason_length CHECK (length(cancel_reason) <= 2000),
  ADD COLUMN gate_slot integer,
  -- Whoever parks a row says what will wake it: the freeing of its key, or a time.
  ADD CONSTRAINT instance_throttled_has_a_waker CHECK (status <> 'throttled' OR concurrency_key IS NOT NULL OR throttled_until IS NOT NULL),
  ADD CONSTRAINT instance_throttled_until_is_of_throttled CHECK (throttled_until IS NULL OR status = 'throttled');

COMMENT ON COLUMN holdfast.instance.parent_epoch IS
  'The claim epoch of the parent when it spawned this child. The parent keeps that epoch while it waits, so a child of an earlier spawn cannot count towards a later one. Null for a child that a person has retried: it has been counted.';
COMMENT ON COLUMN holdfast.instance.throttled_until IS
  'When the bucket of its rate limit will have refilled as far as this row''s place in the line; null for a row that a key has denied, which is woken by whoever frees it.';
COMMENT ON COLUMN holdfast.instance.gate_slot IS
  'The slot of its gate that the last claim took; null for a serial key. Means something only while executing; written by claims and by nothing else.';
COMMENT ON COLUMN holdfast.instance.cancel_requested_at IS
  'Somebody asked an executing instance to stop. Its step is told; what it then answers ends the instance, and a reaper ends it when the grace is over.';

DROP INDEX holdfast.instance_concurrency_active;
CREATE UNIQUE INDEX instance_concurrency_active ON holdfast.instance (project_id, concurrency_key)
  WHERE status = 'executing' AND concurrency_key IS NOT NULL AND gate_slot IS NULL;
DROP INDEX holdfast.instance_await_deadline;
CREATE INDEX instance_await_deadline ON holdfast.instance (await_deadline)
  WHERE status IN ('awaiting_signal', 'awaiting_children') AND await_deadline IS NOT NULL;
DROP INDEX holdfast.instance_parent;
CREATE INDEX instance_parent ON holdfast.instance (parent_id, id) WHERE parent_id IS NOT NULL;
-- Without what executes: a claim adds no entry here.
DROP INDEX holdfast.instance_project;
CREATE INDEX instance_project ON holdfast.instance (project_id, id) WHERE status <> 'executing';
-- Everything that waits for a key, in its order: what decides who is first, and who is woken.
CREATE INDEX instance_line ON holdfast.instance (project_id, concurrency_key, queue, priority, eligible_at, id)
  WHERE status IN ('runnable', 'throttled') AND concurrency_key IS NOT NULL;
CREATE INDEX instance_throttled_until ON holdfast.instance (throttled_until) WHERE status = 'throttled' AND throttled_until IS NOT NULL;
CREATE INDEX instance_rate_line ON holdfast.instance (project_id, rate_key, throttled_until)
  WHERE status = 'throttled' AND throttled_until IS NOT NULL AND rate_key IS NOT NULL;
CREATE INDEX instance_cancelling ON holdfast.instance (cancel_requested_at) WHERE status = 'executing' AND cancel_requested_at IS NOT NULL;

-- What belongs to an instance is removed with it by the statements that delete instances, for a whole batch at once. A foreign key did so row by row: 5 us for each
-- of the four and each row, which made deleting a finished job cost more than keeping it. Nothing is written for an instance that is not there: a signal locks
-- its target first, in the same statement, and children are inserted under the lock of their parent. E13 counts what has lost its owner.
ALTER TABLE holdfast.signal DROP CONSTRAINT signal_target_id;
ALTER TABLE holdfast.signal_receipt DROP CONSTRAINT signal_receipt_target_id;
ALTER TABLE holdfast.instance DROP CONSTRAINT instance_parent_id;
COMMENT ON COLUMN holdfast.instance.parent_id IS 'The instance that spawned this one; it may have been removed since, by its own retention.';

-- Limits -------------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.limit_policy (
  project_id bigint NOT NULL CONSTRAINT limit_policy_project REFERENCES holdfast.project (id),
  kind       text NOT NULL CONSTRAINT limit_policy_kind CHECK (kind IN ('rate', 'gate')),
  name       text NOT NULL CONSTRAINT limit_policy_name_shape CHECK (length(name) BETWEEN 1 AND 200 AND position(':' IN name) = 0),
  rate       bigint CONSTRAINT limit_policy_rate_range CHECK (rate BETWEEN 0 AND 1000000000),
  period_ms  bigint CONSTRAINT limit_policy_period_range CHECK (period_ms BETWEEN 1 AND 31536000000),
  burst      integer CONSTRAINT limit_policy_burst_range CHECK (burst BETWEEN 1 AND 1000000000),
  shards     smallint CONSTRAINT limit_policy_shards_range CHECK (shards BETWEEN 1 AND 64),
  capacity   integer CONSTRAINT limit_policy_capacity_range CHECK (capacity BETWEEN 0 AND 100000),
  revision   integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT limit_policy_pkey PRIMARY KEY (project_id, kind, name),
  CONSTRAINT limit_policy_shape CHECK (
    CASE kind
      WHEN 'rate' THEN rate IS NOT NULL AND period_ms IS NOT NULL AND burst IS NOT NULL AND shards IS NOT NULL AND capacity IS NULL
      ELSE rate IS NULL AND period_ms IS NULL AND burst IS NULL AND shards IS NULL AND capacity IS NOT NULL
    END
  )
);
COMMENT ON TABLE holdfast.limit_policy IS
  'What a project allows: `rate` tokens every `period_ms`, up to `burst` at once; or `capacity` steps at a time. Written by the api, read by every claim: a change holds from the next claim on. A key is `name` or `name:partition`; each partition has the whole limit. A key without a gate is serial.';

CREATE TABLE holdfast.gate_slot (
  project_id   bigint NOT NULL,
  key          text NOT NULL,
  slot         integer NOT NULL CONSTRAINT gate_slot_slot_not_negative CHECK (slot >= 0),
  holder_id    bigint,
  holder_epoch bigint,
  changed_at   timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT gate_slot_pkey PRIMARY KEY (project_id, key, slot),
  CONSTRAINT gate_slot_holder_has_an_epoch CHECK ((holder_id IS NULL) = (holder_epoch IS NULL))
) WITH (
  -- No index on the holder, and room on the page: taking and freeing a slot are HOT updates.
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE holdfast.gate_slot IS
  'The slots of a gate''s key: a row has one holder, so more steps than slots cannot be admitted. Made by the first claims of a key, with their holder in it; freed by a trigger of instance in the transaction that ends the claim, whoever ends it; removed by the reaper when all of a key are long free.';

CREATE TABLE holdfast.rate_bucket (
  project_id  bigint NOT NULL,
  key         text NOT NULL,
  shard       smallint NOT NULL CONSTRAINT rate_bucket_shard_not_negative CHECK (shard >= 0),
  revision    integer NOT NULL,
  tokens      bigint NOT NULL,
  capacity    bigint NOT NULL,
  refilled_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT rate_bucket_pkey PRIMARY KEY (project_id, key, shard),
  CONSTRAINT rate_bucket_within_capacity CHECK (tokens BETWEEN 0 AND capacity)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE holdfast.rate_bucket IS
  'Token buckets, in millionths of a token: whole numbers, so that no rounding can take one below zero (digest N5). Made, refilled and debited by claims; removed by the reaper when they have long been full.';
COMMENT ON COLUMN holdfast.rate_bucket.revision IS
  'Of the policy, when this shard was last written. A shard that has missed a revision holds tokens of an arrangement in which others had them too; they do not count (digest N6).';

-- A slot is freed by the end of its holder's claim, in that transaction, whichever statement ends it: nobody can forget to.
CREATE FUNCTION holdfast.free_gate_slot() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.status = 'executing' AND NEW.concurrency_key = OLD.concurrency_key THEN
    -- The same worker goes on with the next step under its slot.
    UPDATE holdfast.gate_slot SET holder_epoch = NEW.claim_epoch
    WHERE project_id = OLD.project_id AND key = OLD.concurrency_key AND slot = OLD.gate_slot
      AND holder_id = OLD.id AND holder_epoch = OLD.claim_epoch;
  ELSE
    UPDATE holdfast.gate_slot SET holder_id = NULL, holder_epoch = NULL, changed_at = now()
    WHERE project_id = OLD.project_id AND key = OLD.concurrency_key AND slot = OLD.gate_slot
      AND holder_id = OLD.id AND holder_epoch = OLD.claim_epoch;
  END IF;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION holdfast.free_gate_slot() FROM PUBLIC;

CREATE TRIGGER instance_frees_gate_slot AFTER UPDATE OF status, claim_epoch, concurrency_key ON holdfast.instance
  FOR EACH ROW WHEN (
    OLD.status = 'executing' AND OLD.gate_slot IS NOT NULL
    AND (NEW.status <> 'executing' OR NEW.claim_epoch <> OLD.claim_epoch OR NEW.concurrency_key IS DISTINCT FROM OLD.concurrency_key)
  ) EXECUTE FUNCTION holdfast.free_gate_slot();
CREATE TRIGGER instance_deleted_frees_gate_slot AFTER DELETE ON holdfast.instance
  FOR EACH ROW WHEN (OLD.status = 'executing' AND OLD.gate_slot IS NOT NULL) EXECUTE FUNCTION holdfast.free_gate_slot();

-- Cancellation ---------------------------------------------------------------------------------------------------------

CREATE TABLE holdfast.cascade (
  parent_id    bigint NOT NULL CONSTRAINT cascade_pkey PRIMARY KEY,
  reason       text,
  -- Not when its transaction began: it may have waited for the flush that spawned the last of the children.
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE holdfast.cascade IS
  'Cancelled instances whose children are still to be cancelled. Written in the transaction that cancels the parent; worked off by reapers some at a time, so that a parent of a million children costs its caller nothing.';

-- Outcomes ---------------------------------------------------------------------------------------------------------------

ALTER TABLE holdfast.outcome
  ADD COLUMN version integer,
  ADD COLUMN rate_weight integer,
  ADD COLUMN join_count integer,
  ADD COLUMN key_change boolean NOT NULL DEFAULT false,
  ADD COLUMN discard boolean NOT NULL DEFAULT false,
  ADD COLUMN held_key text,
  ADD COLUMN concurrency_key text,
  ADD COLUMN rate_key text,
  ADD COLUMN children jsonb,
  DROP CONSTRAINT outcome_shape,
  ADD CONSTRAINT outcome_shape CHECK (
    CASE kind
      WHEN 'next' THEN step IS NOT NULL
      WHEN 'sleep' THEN step IS NOT NULL AND delay_ms IS NOT NULL
      WHEN 'retry' THEN delay_ms IS NOT NULL
      WHEN 'await_signal' THEN step IS NOT NULL AND cardinality(awaits) > 0
      WHEN 'spawn' THEN step IS NOT NULL AND jsonb_typeof(children) = 'array' AND (join_count IS NULL OR join_count > 0)
      WHEN 'continue_as' THEN step IS NOT NULL AND version > 0
      WHEN 'done' THEN error IS NULL
      ELSE error IS NOT NULL AND result IS NULL
    END
  );
COMMENT ON COLUMN holdfast.outcome.held_key IS 'The concurrency key that its claim held: whoever waits for it is looked after when the claim is over.';
COMMENT ON COLUMN holdfast.outcome.key_change IS 'The next step has the key in concurrency_key, which may be none; false: it keeps the one it has.';

-- Grants -----------------------------------------------------------------------------------------------------------------

GRANT SELECT ON holdfast.limit_policy TO holdfast_api, holdfast_enqueue, holdfast_scheduler, holdfast_flusher, holdfast_reaper;
GRANT INSERT ON holdfast.limit_policy TO holdfast_api;
GRANT UPDATE (rate, period_ms, burst, shards, capacity, revision, updated_at) ON holdfast.limit_policy TO holdfast_api;

GRANT SELECT ON holdfast.gate_slot, holdfast.rate_bucket TO holdfast_api, holdfast_scheduler, holdfast_flusher, holdfast_reaper;
GRANT INSERT ON holdfast.gate_slot, holdfast.rate_bucket TO holdfast_scheduler;
GRANT UPDATE (holder_id, holder_epoch, changed_at) ON holdfast.gate_slot TO holdfast_scheduler;
GRANT UPDATE (tokens, capacity, revision, refilled_at) ON holdfast.rate_bucket TO holdfast_scheduler;
GRANT DELETE ON holdfast.gate_slot, holdfast.rate_bucket TO holdfast_reaper;
GRANT UPDATE (changed_at) ON holdfast.gate_slot TO holdfast_reaper; -- a row lock needs the privilege on some column
GRANT UPDATE (refilled_at) ON holdfast.rate_bucket TO holdfast_reaper;

GRANT UPDATE (throttled_until, gate_slot) ON holdfast.instance TO holdfast_scheduler;
GRANT INSERT, DELETE ON holdfast.instance TO holdfast_flusher;
GRANT UPDATE (gate_slot) ON holdfast.instance TO holdfast_flusher;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_flusher;
GRANT SELECT ON holdfast.machine TO holdfast_flusher;
GRANT SELECT, INSERT ON holdfast.cascade TO holdfast_flusher;

GRANT UPDATE (throttled_until, cancel_requested_at, cancel_reason, children_pending) ON holdfast.instance TO holdfast_reaper;
GRANT SELECT, INSERT, DELETE ON holdfast.cascade TO holdfast_reaper;
GRANT UPDATE (requested_at) ON holdfast.cascade TO holdfast_reaper;

GRANT UPDATE (throttled_until, cancel_requested_at, cancel_reason, children_pending, parent_epoch, await_deadline, awaits, error, attempt, reclaims)
  ON holdfast.instance TO holdfast_api;
GRANT SELECT, INSERT ON holdfast.cascade TO holdfast_api;
GRANT INSERT ON holdfast.transition TO holdfast_api;
GRANT SELECT, DELETE ON holdfast.signal_receipt TO holdfast_flusher, holdfast_reaper;
GRANT DELETE ON holdfast.signal_receipt TO holdfast_api;
GRANT DELETE ON holdfast.signal TO holdfast_api;

-- A scheduler that applies its outcomes itself (HOLDFAST_FLUSH=direct) has the rights of both.
DO $$
BEGIN
  BEGIN
    CREATE ROLE holdfast_direct_scheduler LOGIN;
  EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles belong to the cluster: another database of it has made this one
  END;
  GRANT holdfast_scheduler, holdfast_flusher TO holdfast_direct_scheduler;
  ALTER ROLE holdfast_direct_scheduler SET enable_hashjoin = off;
  ALTER ROLE holdfast_direct_scheduler SET enable_mergejoin = off;
  ALTER ROLE holdfast_direct_scheduler SET enable_seqscan = off;
  ALTER ROLE holdfast_direct_scheduler SET enable_memoize = off;
  ALTER ROLE holdfast_direct_scheduler SET plan_cache_mode = force_generic_plan;
  ALTER ROLE holdfast_direct_scheduler SET jit = off;
END $$;
