-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.list */ 
SELECT s.name, s.cron, s.timezone, s.machine, s.version, s.input, s.queue, s.priority, s.concurrency_key, s.catch_up, s.overlap,
  s.next_at, s.last_at, s.last_instance_id, s.skipped_at, s.skipped_why, s.paused_at, s.last_error, s.last_error_at, s.created_at, s.updated_at FROM holdfast.schedule s
WHERE s.project_id = $1::bigint AND s.name > $2::text
ORDER BY s.name LIMIT $3::integer
