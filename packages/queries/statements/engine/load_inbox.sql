-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.load_inbox */ 
SELECT * FROM (
  SELECT id, target_id, name, payload, inserted_at FROM holdfast.signal WHERE target_id = ANY ($1::bigint[]) OFFSET 0
) inbox ORDER BY id
