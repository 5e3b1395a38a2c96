-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.wake_waiters */ 
WITH given AS MATERIALIZED (
  SELECT DISTINCT project_id, key
  FROM unnest($1::bigint[], $2::text[]) AS k (project_id, key)
  ORDER BY project_id, key
), room AS MATERIALIZED (
  SELECT g.project_id, g.key, gate.capacity IS NOT NULL AS gate, CASE
      WHEN gate.capacity IS NULL THEN CASE WHEN EXISTS (
        SELECT FROM holdfast.instance e
        WHERE e.project_id = g.project_id AND e.concurrency_key = g.key
          AND e.status = 'executing' AND e.concurrency_key IS NOT NULL AND e.gate_slot IS NULL
      ) THEN 0 ELSE 1 END
      ELSE greatest(gate.capacity - (
        SELECT count(*) FROM holdfast.gate_slot s
        WHERE s.project_id = g.project_id AND s.key = g.key AND s.holder_id IS NOT NULL
      ), 0)
    END AS free
  FROM given g
  LEFT JOIN holdfast.limit_policy gate ON gate.project_id = g.project_id AND gate.kind = 'gate' AND gate.name = split_part(g.key, ':', 1)
), head AS MATERIALIZED (
  SELECT first.id, first.status, line.queue
  FROM room r
  CROSS JOIN LATERAL (
    WITH RECURSIVE skip AS (
      (SELECT w.queue FROM holdfast.instance w
        WHERE w.project_id = r.project_id AND w.concurrency_key = r.key AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
        ORDER BY w.queue LIMIT 1)
      UNION ALL
      SELECT (SELECT w.queue FROM holdfast.instance w
        WHERE w.project_id = r.project_id AND w.concurrency_key = r.key AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
          AND w.queue > skip.queue
        ORDER BY w.queue LIMIT 1)
      FROM skip WHERE skip.queue IS NOT NULL
    )
    SELECT queue FROM skip WHERE queue IS NOT NULL AND r.free > 0
  ) line
  CROSS JOIN LATERAL (
    SELECT w.id, w.status FROM holdfast.instance w
    WHERE w.project_id = r.project_id AND w.concurrency_key = r.key AND w.queue = line.queue
      AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
      AND (NOT r.gate OR w.throttled_until IS NULL AND NOT EXISTS (
        SELECT FROM holdfast.machine m WHERE m.name = w.machine AND m.version = w.version AND m.seen_at <= now() - interval '5 minutes'
      ))
    ORDER BY w.priority, w.eligible_at, w.id LIMIT r.free
  ) first
), locked AS MATERIALIZED (
  SELECT newest.* FROM head h
  CROSS JOIN LATERAL (
    SELECT w.id FROM holdfast.instance w
    WHERE w.id = h.id AND w.status = 'throttled' AND w.throttled_until IS NULL LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
  ) newest
  WHERE h.status = 'throttled'
), woken AS (
  UPDATE holdfast.instance g SET status = 'runnable', updated_at = now()
  FROM locked WHERE g.id = ANY (ARRAY[locked.id])
  RETURNING g.queue
)
SELECT queue FROM woken
UNION
SELECT queue FROM head WHERE status = 'runnable'
UNION ALL
SELECT NULL WHERE (SELECT count(*) FROM head WHERE status = 'throttled') > (SELECT count(*) FROM locked)
