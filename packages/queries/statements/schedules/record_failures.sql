-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.record_failures */ 
WITH failed AS MATERIALIZED (
  SELECT s.project_id, s.name, g.error FROM unnest(
    $1::bigint[],
    $2::text[],
    $3::bigint[],
    $4::text[]
  ) AS g (project_id, name, revision, error)
  JOIN holdfast.schedule s ON s.project_id = g.project_id AND s.name = g.name AND s.revision = g.revision
  WHERE s.due_at <= now()
  ORDER BY s.project_id, s.name
  FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE holdfast.schedule s SET last_error = failed.error::jsonb, last_error_at = now(), failures = s.failures + 1,
  due_at = now() + least(interval '5 minutes', interval '10 seconds' * power(2, least(s.failures, 10)))
FROM failed WHERE s.project_id = failed.project_id AND s.name = failed.name
RETURNING s.project_id, s.name, s.last_error ->> 'code' AS code
