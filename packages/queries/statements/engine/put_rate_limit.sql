-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.put_rate_limit */ 
INSERT INTO holdfast.limit_policy AS p (project_id, kind, name, rate, period_ms, burst, shards)
VALUES ($1::bigint, 'rate', $2::text, $3::bigint, $4::bigint, $5::integer, $6::smallint)
ON CONFLICT (project_id, kind, name) DO UPDATE SET rate = excluded.rate, period_ms = excluded.period_ms, burst = excluded.burst,
  shards = excluded.shards, updated_at = now(),
  revision = p.revision + ((p.burst, p.shards) IS DISTINCT FROM (excluded.burst, excluded.shards))::integer
RETURNING kind, name, rate, period_ms, burst, shards, capacity, updated_at
