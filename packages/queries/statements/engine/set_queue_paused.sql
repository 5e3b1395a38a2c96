-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.set_queue_paused */ 
INSERT INTO holdfast.queue (name, paused_at) VALUES ($1::text, CASE WHEN $2::boolean THEN now() END)
ON CONFLICT (name) DO UPDATE SET updated_at = now(),
  paused_at = CASE WHEN $3::boolean THEN coalesce(queue.paused_at, now()) END
RETURNING name, paused_at IS NOT NULL AS paused
