-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.delete_old_runs */ 
WITH deleted AS (
  DELETE FROM holdfast.schedule_run WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.schedule_run WHERE fired_at < now() - $1::bigint * interval '1 millisecond'
    ORDER BY fired_at LIMIT $2::integer FOR UPDATE SKIP LOCKED
  ))
  RETURNING 1
)
SELECT count(*)::integer AS count FROM deleted
