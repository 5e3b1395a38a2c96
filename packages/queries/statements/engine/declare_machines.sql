-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.declare_machines */ 
INSERT INTO holdfast.machine (name, version, queue, max_reclaims)
SELECT * FROM unnest(
  $1::text[], $2::integer[],
  $3::text[], $4::integer[]
) AS m (name, version, queue, max_reclaims)
ORDER BY name, version
ON CONFLICT (name, version) DO UPDATE SET queue = excluded.queue, max_reclaims = excluded.max_reclaims, seen_at = now()
