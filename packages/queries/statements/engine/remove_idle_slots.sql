-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.remove_idle_slots */ 
WITH idle AS MATERIALIZED (
  SELECT project_id, key, count(*) AS slots FROM holdfast.gate_slot GROUP BY project_id, key
  HAVING count(holder_id) = 0 AND max(changed_at) < now() - $1::bigint * interval '1 millisecond'
  LIMIT $2::integer
), locked AS MATERIALIZED (
  SELECT i.project_id, i.key, i.slots, s.slot FROM idle i
  CROSS JOIN LATERAL (
    SELECT slot FROM holdfast.gate_slot s WHERE s.project_id = i.project_id AND s.key = i.key AND s.holder_id IS NULL FOR UPDATE SKIP LOCKED
  ) s
), whole AS (
  SELECT project_id, key FROM locked GROUP BY project_id, key, slots HAVING count(*) = slots
), removed AS (
  DELETE FROM holdfast.gate_slot s USING whole w WHERE s.project_id = w.project_id AND s.key = ANY (ARRAY[w.key])
  RETURNING 1
)
SELECT count(*)::integer AS count FROM removed
