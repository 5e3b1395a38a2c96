-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.match_instances */ 
WITH looked AS MATERIALIZED (
  SELECT * FROM (
    (
    SELECT id, status, machine, queue, correlation_key, parent_id, cancel_requested_at FROM holdfast.instance
    WHERE project_id = $1::bigint AND status <> 'executing' AND ($2::bigint IS NULL OR id < $3::bigint)
    ORDER BY id DESC LIMIT $4::integer)
    UNION ALL
    (
    SELECT id, status, machine, queue, correlation_key, parent_id, cancel_requested_at FROM holdfast.instance
    WHERE project_id = $5::bigint AND status = 'executing' AND lease_expires_at IS NOT NULL AND ($6::bigint IS NULL OR id < $7::bigint)
    ORDER BY id DESC LIMIT $8::integer)
  ) both_windows ORDER BY id DESC LIMIT $9::integer
), matching AS MATERIALIZED (
  SELECT id FROM looked
  WHERE status = ANY ($10::holdfast.instance_status[]) AND (status <> 'executing' OR cancel_requested_at IS NULL)
    AND ($11::text IS NULL OR machine = $12::text)
    AND ($13::holdfast.instance_status IS NULL OR status = $14::holdfast.instance_status)
    AND ($15::text IS NULL OR queue = $16::text)
    AND ($17::text IS NULL OR correlation_key = $18::text)
    AND ($19::bigint IS NULL OR parent_id = $20::bigint)
  ORDER BY id DESC LIMIT $21::integer
)
SELECT (SELECT array_agg(id ORDER BY id DESC) FROM matching) AS ids,
  CASE WHEN (SELECT count(*) FROM matching) >= $22::integer THEN (SELECT min(id) FROM matching)
    WHEN (SELECT count(*) FROM looked) >= $23::integer THEN (SELECT min(id) FROM looked) END AS next
