-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.put */ 
INSERT INTO holdfast.schedule AS s (
  project_id, name, cron, timezone, machine, version, input, queue, priority, concurrency_key, catch_up, overlap, next_at, due_at, paused_at
)
SELECT $1::bigint, $2::text, $3::text, $4::text, $5::text,
  $6::integer, $7::text::jsonb, $8::text, $9::smallint,
  $10::text, $11::text, $12::text, n.next_at, n.next_at,
  CASE WHEN n.next_at IS NULL THEN now() END
FROM (SELECT $13::timestamptz AS next_at) n
ON CONFLICT (project_id, name) DO UPDATE SET
  revision = s.revision + 1, cron = excluded.cron, timezone = excluded.timezone, machine = excluded.machine, version = excluded.version,
  input = excluded.input, queue = excluded.queue, priority = excluded.priority, concurrency_key = excluded.concurrency_key,
  catch_up = excluded.catch_up, overlap = excluded.overlap, next_at = excluded.next_at, due_at = excluded.due_at,
  paused_at = CASE WHEN excluded.paused_at IS NOT NULL THEN coalesce(s.paused_at, excluded.paused_at) END,
  failures = 0, last_error = NULL, last_error_at = NULL, updated_at = now()
RETURNING s.name, s.cron, s.timezone, s.machine, s.version, s.input, s.queue, s.priority, s.concurrency_key, s.catch_up, s.overlap,
  s.next_at, s.last_at, s.last_instance_id, s.skipped_at, s.skipped_why, s.paused_at, s.last_error, s.last_error_at, s.created_at, s.updated_at, s.xmax = 0 AS created
