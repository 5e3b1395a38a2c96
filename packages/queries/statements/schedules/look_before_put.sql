-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.look_before_put */ 
SELECT now() AS now,
  (SELECT s.last_at FROM holdfast.schedule s WHERE s.project_id = $1::bigint AND s.name = $2::text) AS last_at,
  EXISTS (SELECT FROM holdfast.machine) AND NOT EXISTS (
    SELECT FROM holdfast.machine m WHERE m.name = $3::text AND ($4::integer IS NULL OR m.version = $5::integer)
  ) AS unknown_machine
