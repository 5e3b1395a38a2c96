-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.claim */ 
WITH candidate AS MATERIALIZED (
  SELECT g.ctid, g.id, g.project_id, g.concurrency_key, g.priority, g.eligible_at
  FROM holdfast.instance g
  LEFT JOIN LATERAL (
    SELECT true AS held FROM holdfast.instance e
    WHERE e.project_id = g.project_id AND e.concurrency_key = g.concurrency_key
      AND e.status = 'executing' AND e.concurrency_key IS NOT NULL
    LIMIT 1
  ) holder ON true
  WHERE g.status = 'runnable' AND g.queue = $1::text
    AND (g.machine || '/' || g.version) = ANY ($2::text[])
    AND (g.concurrency_key IS NULL OR holder.held IS NULL)
    AND NOT EXISTS (SELECT FROM holdfast.queue q WHERE q.name = $3::text AND q.paused_at IS NOT NULL)
  ORDER BY g.priority, g.eligible_at, g.id
  LIMIT $4::integer
  FOR NO KEY UPDATE OF g SKIP LOCKED
), ranked AS (
  SELECT ctid, concurrency_key,
    row_number() OVER (PARTITION BY project_id, concurrency_key ORDER BY priority, eligible_at, id) AS place
  FROM candidate
), winner AS MATERIALIZED (
  SELECT ctid FROM ranked WHERE concurrency_key IS NULL OR place = 1
), claimed AS (
  UPDATE holdfast.instance g SET
    status = 'executing', claim_epoch = g.claim_epoch + 1, claimed_by = $5::text,
    lease_expires_at = now() + $6::integer * interval '1 millisecond', updated_at = now()
  FROM winner WHERE g.ctid = winner.ctid
  RETURNING g.id, g.project_id, g.claim_epoch, g.machine, g.version, g.step, g.state, g.attempt, g.reclaims, g.awaits, g.traceparent,
    g.priority, g.eligible_at
)
SELECT id, project_id, claim_epoch, machine, version, step, state, attempt, reclaims, awaits, traceparent
FROM claimed ORDER BY priority, eligible_at, id
