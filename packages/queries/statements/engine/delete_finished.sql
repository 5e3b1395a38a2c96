-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.delete_finished */ 
WITH finished AS MATERIALIZED (
  SELECT array_agg(id) AS ids FROM (
    SELECT g.id FROM holdfast.instance g
    WHERE g.status IN ('done', 'failed', 'cancelled') AND g.updated_at < now() - $1::bigint * interval '1 millisecond'
      AND NOT EXISTS (
        SELECT FROM holdfast.instance p WHERE p.id = g.parent_id AND p.status NOT IN ('done', 'failed', 'cancelled')
      )
    ORDER BY g.updated_at LIMIT $2::integer FOR UPDATE OF g SKIP LOCKED
  ) g
), deleted AS (
  DELETE FROM holdfast.instance WHERE id = ANY ((SELECT ids FROM finished)::bigint[]) RETURNING id
), purged AS (
  DELETE FROM holdfast.signal WHERE target_id = ANY ((SELECT ids FROM finished)::bigint[])
), forgotten AS (
  DELETE FROM holdfast.signal_receipt WHERE target_id = ANY ((SELECT ids FROM finished)::bigint[])
)
SELECT count(*)::integer AS count FROM deleted
