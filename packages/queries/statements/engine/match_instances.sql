-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.match_instances */ 
WITH looked AS MATERIALIZED (
  SELECT * FROM (
    (
    SELECT id, status, machine, queue, correlation_key, parent_id, cancel_requested_at FROM holdfast.instance
    WHERE project_id = $1::bigint AND status <> 'executing' AND id < coalesce($2::bigint, 9223372036854775807)
    ORDER BY id DESC LIMIT $3::integer)
    UNION ALL
    (
    SELECT id, status, machine, queue, correlation_key, parent_id, cancel_requested_at FROM holdfast.instance
    WHERE project_id = $4::bigint AND status = 'executing' AND lease_expires_at IS NOT NULL AND id < coalesce($5::bigint, 9223372036854775807)
    ORDER BY id DESC LIMIT $6::integer)
  ) both_windows ORDER BY id DESC LIMIT $7::integer
), matching AS MATERIALIZED (
  SELECT id FROM looked
  WHERE status = ANY ($8::holdfast.instance_status[]) AND (status <> 'executing' OR cancel_requested_at IS NULL)
    AND ($9::text IS NULL OR machine = $10::text)
    AND ($11::holdfast.instance_status IS NULL OR status = $12::holdfast.instance_status)
    AND ($13::text IS NULL OR queue = $14::text)
    AND ($15::text IS NULL OR correlation_key = $16::text)
    AND ($17::bigint IS NULL OR parent_id = $18::bigint)
  ORDER BY id DESC LIMIT $19::integer
)
SELECT (SELECT array_agg(id ORDER BY id DESC) FROM matching) AS ids,
  CASE WHEN (SELECT count(*) FROM matching) >= $20::integer THEN (SELECT min(id) FROM matching)
    WHEN (SELECT count(*) FROM looked) >= $21::integer THEN (SELECT min(id) FROM looked) END AS next
