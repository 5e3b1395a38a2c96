-- safe: creates only, and lets schedulers insert; an older scheduler fires nothing, and a newer one beside it does
-- Cron schedules: their tables, indexes and grants.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

CREATE TABLE holdfast.schedule (
  project_id       bigint NOT NULL CONSTRAINT schedule_project REFERENCES holdfast.project (id),
  name             text NOT NULL CONSTRAINT schedule_name_shape CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
  revision         bigint NOT NULL DEFAULT 1,
  cron             text NOT NULL CONSTRAINT schedule_cron_length CHECK (length(cron) BETWEEN 1 AND 1000),
  timezone         text NOT NULL DEFAULT 'UTC' CONSTRAINT schedule_timezone_length CHECK (length(timezone) BETWEEN 1 AND 100),
  machine          text NOT NULL CONSTRAINT schedule_machine_length CHECK (length(machine) BETWEEN 1 AND 200),
  version          integer CONSTRAINT schedule_version_positive CHECK (version > 0),
  input            jsonb NOT NULL DEFAULT '{}',
  queue            text CONSTRAINT schedule_queue_length CHECK (length(queue) BETWEEN 1 AND 200),
  priority         smallint NOT NULL DEFAULT 0,
  concurrency_key  text CONSTRAINT schedule_concurrency_key_length CHECK (length(concurrency_key) BETWEEN 1 AND 500),
  catch_up         text NOT NULL DEFAULT 'none' CONSTRAINT schedule_catch_up CHECK (catch_up IN ('none', 'one', 'all')),
  overlap          text NOT NULL DEFAULT 'allow' CONSTRAINT schedule_overlap CHECK (overlap IN ('allow', 'skip', 'queue')),
  next_at          timestamptz,
  due_at           timestamptz,
  last_at          timestamptz,
  last_instance_id bigint,
  skipped_at       timestamptz,
  skipped_why      text CONSTRAINT schedule_skipped_why CHECK (skipped_why IN ('missed', 'overlap')),
  paused_at        timestamptz,
  failures         integer NOT NULL DEFAULT 0 CONSTRAINT schedule_failures_not_negative CHECK (failures >= 0),
  last_error       jsonb,
  last_error_at    timestamptz,
  created_at       timestamptz NOT NULL DEFAULT now(),
  updated_at       timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT schedule_pkey PRIMARY KEY (project_id, name),
  CONSTRAINT schedule_paused_has_no_next CHECK ((paused_at IS NULL) = (next_at IS NOT NULL)),
  CONSTRAINT schedule_next_has_a_look CHECK ((next_at IS NULL) = (due_at IS NULL)),
  -- What has been fired lies behind: a definition that was computed while a tick was being fired cannot bring it back.
  CONSTRAINT schedule_next_is_after_last CHECK (next_at > last_at),
  CONSTRAINT schedule_queue_has_the_key CHECK (overlap <> 'queue' OR concurrency_key IS NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE holdfast.schedule IS
  'When to insert an instance of a machine. Defined by the api; moved on by schedulers, which insert the instances (queries/schedules/fire-ticks).';
COMMENT ON COLUMN holdfast.schedule.revision IS
  'Counts changes, a firing among them: who has computed ticks from a row that has changed since fires none.';
COMMENT ON COLUMN holdfast.schedule.next_at IS 'The next tick that has not been dealt with; null while paused.';
COMMENT ON COLUMN holdfast.schedule.due_at IS 'When a scheduler looks at it: next_at, or later while it fails. Served by schedule_due.';
COMMENT ON COLUMN holdfast.schedule.last_at IS 'The newest tick that has made an instance.';
COMMENT ON COLUMN holdfast.schedule.skipped_at IS
  'The newest tick that has made none, and in skipped_why the reason: it was missed and catch_up does not want it, or the run before it was still live.';
CREATE INDEX schedule_due ON holdfast.schedule (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE holdfast.schedule_run (
  project_id  bigint NOT NULL,
  schedule    text NOT NULL,
  tick_at     timestamptz NOT NULL,
  instance_id bigint,
  fired_at    timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT schedule_run_pkey PRIMARY KEY (project_id, schedule, tick_at)
);
COMMENT ON TABLE holdfast.schedule_run IS
  'The ticks that have been fired, each with its instance, or without one where the run before was still live. Written in the statement that inserts the instance: the primary key makes a second firing of a tick uncommittable. Not removed with its schedule, so that one of the same name cannot fire its ticks again; removed by the reaper.';
CREATE INDEX schedule_run_fired_at ON holdfast.schedule_run (fired_at);

GRANT SELECT, INSERT, DELETE ON holdfast.schedule TO holdfast_api;
GRANT UPDATE (revision, cron, timezone, machine, version, input, queue, priority, concurrency_key, catch_up, overlap, next_at, due_at, paused_at,
  failures, last_error, last_error_at, updated_at) ON holdfast.schedule TO holdfast_api;

GRANT SELECT ON holdfast.schedule TO holdfast_scheduler;
GRANT UPDATE (revision, next_at, due_at, last_at, last_instance_id, skipped_at, skipped_why, failures, last_error, last_error_at)
  ON holdfast.schedule TO holdfast_scheduler;
GRANT SELECT, INSERT ON holdfast.schedule_run TO holdfast_scheduler;
GRANT INSERT (id, project_id, machine, version, queue, state, priority, correlation_key, concurrency_key) ON holdfast.instance TO holdfast_scheduler;
GRANT USAGE ON SEQUENCE holdfast.instance_id_seq TO holdfast_scheduler;
GRANT SELECT (id, suspended_at) ON holdfast.project TO holdfast_scheduler; -- schedules of a suspended project rest

GRANT SELECT, DELETE ON holdfast.schedule_run TO holdfast_reaper;
GRANT UPDATE (fired_at) ON holdfast.schedule_run TO holdfast_reaper; -- a row lock needs the privilege on some column
