-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.refresh_machines */ 
WITH stale AS MATERIALIZED (
  SELECT m.name, m.version
  FROM unnest($1::text[], $2::integer[]) AS mine (name, version)
  CROSS JOIN LATERAL (
    SELECT d.name, d.version FROM holdfast.machine d
    WHERE d.name = mine.name AND d.version = mine.version AND d.seen_at < now() - $3::bigint * interval '1 millisecond'
    FOR NO KEY UPDATE SKIP LOCKED
  ) m
)
UPDATE holdfast.machine g SET seen_at = now() FROM stale WHERE g.name = stale.name AND g.version = stale.version
