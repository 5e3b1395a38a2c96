-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.put_gate */ 
INSERT INTO holdfast.limit_policy (project_id, kind, name, capacity) VALUES ($1::bigint, 'gate', $2::text, $3::integer)
ON CONFLICT (project_id, kind, name) DO UPDATE SET capacity = excluded.capacity, updated_at = now()
RETURNING kind, name, rate, period_ms, burst, shards, capacity, updated_at
