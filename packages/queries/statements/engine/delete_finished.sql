-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.delete_finished */ 
WITH deleted AS (
  DELETE FROM holdfast.instance WHERE id = ANY (ARRAY(
    SELECT g.id FROM holdfast.instance g
    WHERE g.status IN ('done', 'failed', 'cancelled') AND g.updated_at < now() - $1::bigint * interval '1 millisecond'
      AND NOT EXISTS (
        SELECT FROM holdfast.instance p WHERE p.id = g.parent_id AND p.status NOT IN ('done', 'failed', 'cancelled')
      )
    ORDER BY g.updated_at LIMIT $2::integer FOR UPDATE OF g SKIP LOCKED
  ))
  RETURNING id
)
SELECT count(*)::integer AS count FROM deleted
