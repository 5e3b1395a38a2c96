-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.fire_await_deadlines */ 
WITH due AS MATERIALIZED (
  SELECT id FROM holdfast.instance
  WHERE status IN ('awaiting_signal', 'awaiting_children') AND await_deadline IS NOT NULL AND await_deadline <= now()
  ORDER BY await_deadline LIMIT $1::integer FOR NO KEY UPDATE SKIP LOCKED
), woken AS (
  UPDATE holdfast.instance g SET status = 'runnable', eligible_at = now(), await_deadline = NULL, updated_at = now()
  FROM due WHERE g.id = ANY (ARRAY[due.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues,
  (SELECT ceil(extract(epoch FROM await_deadline - now()) * 1000)::float8 FROM holdfast.instance
    WHERE status IN ('awaiting_signal', 'awaiting_children') AND await_deadline IS NOT NULL AND await_deadline > now()
    ORDER BY await_deadline LIMIT 1) AS next_in_ms
FROM woken
