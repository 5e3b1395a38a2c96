-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.enqueue */ 
WITH given AS MATERIALIZED (
  SELECT nextval('holdfast.instance_id_seq') AS id, g.*
  FROM unnest(
    $1::text[],
    $2::integer[],
    $3::text[],
    $4::text[],
    $5::smallint[],
    $6::bigint[],
    $7::timestamptz[],
    $8::text[],
    $9::text[],
    $10::text[],
    $11::text[],
    $12::integer[],
    $13::text[]
  ) WITH ORDINALITY AS g (
    machine, version, queue, state, priority, delay_ms, eligible_at, correlation_key, correlation_scope, concurrency_key,
    rate_key, rate_weight, traceparent, ord
  )
), input AS MATERIALIZED (
  SELECT given.id, given.ord, given.machine, given.state, given.priority, given.correlation_key, given.correlation_scope,
    given.concurrency_key, given.rate_key, coalesce(given.rate_weight, 1) AS rate_weight, given.traceparent, declared.version IS NOT NULL AS declared,
    coalesce(given.version, declared.version, 1) AS version,
    coalesce(given.queue, declared.queue, 'default') AS queue,
    coalesce(given.eligible_at, now() + given.delay_ms * interval '1 millisecond', now()) AS eligible_at
  FROM given
  LEFT JOIN LATERAL (
    SELECT m.version, m.queue FROM holdfast.machine m
    WHERE m.name = given.machine AND (given.version IS NULL OR m.version = given.version)
    ORDER BY m.version DESC LIMIT 1
  ) declared ON true
), unknown AS (
  SELECT DISTINCT machine FROM input
  WHERE $14::boolean AND NOT declared AND EXISTS (SELECT FROM holdfast.machine)
), unlimited AS (
  SELECT DISTINCT rate_key || CASE WHEN p.name IS NULL THEN '' ELSE format(' (weight %s, burst %s)', rate_weight, p.burst) END AS complaint
  FROM input
  LEFT JOIN holdfast.limit_policy p
    ON p.project_id = $15::bigint AND p.kind = 'rate' AND p.name = split_part(input.rate_key, ':', 1)
  WHERE rate_key IS NOT NULL AND coalesce(rate_weight > p.burst, true)
), inserted AS (
  INSERT INTO holdfast.instance (
    id, project_id, machine, version, queue, state, priority, status, eligible_at,
    correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, traceparent
  ) OVERRIDING SYSTEM VALUE
  SELECT id, $16::bigint, machine, version, queue, coalesce(state::jsonb, '{}'), coalesce(priority, 0::smallint),
    CASE WHEN eligible_at > now() THEN 'scheduled' ELSE 'runnable' END::holdfast.instance_status, eligible_at,
    correlation_key, coalesce(correlation_scope::holdfast.instance_status[], '{}'), concurrency_key, rate_key, rate_weight, traceparent
  FROM input
  WHERE NOT EXISTS (SELECT FROM unknown) AND NOT EXISTS (SELECT FROM unlimited)
  ORDER BY correlation_key, ord
  ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
  RETURNING id, queue, status, eligible_at
)
SELECT
  (SELECT array_agg(id ORDER BY ord) FROM input) AS ids,
  (SELECT array_agg(id) FROM inserted) AS inserted,
  (SELECT array_agg(machine ORDER BY machine) FROM unknown) AS unknown,
  (SELECT array_agg(complaint ORDER BY complaint) FROM unlimited) AS unlimited,
  (SELECT array_agg(DISTINCT queue) FROM inserted WHERE status = 'runnable') AS queues,
  (SELECT ceil(extract(epoch FROM min(eligible_at) - now()) * 1000)::float8 FROM inserted WHERE status = 'scheduled') AS due_in_ms
