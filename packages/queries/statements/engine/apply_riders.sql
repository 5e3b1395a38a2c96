-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.apply_riders */ 
WITH purged AS (
  DELETE FROM holdfast.signal WHERE target_id = ANY ($1::bigint[])
), forgotten AS (
  DELETE FROM holdfast.signal_receipt WHERE target_id = ANY ($2::bigint[])
), spent AS (
  DELETE FROM holdfast.signal WHERE id = ANY ($3::bigint[])
), woken AS (
  UPDATE holdfast.instance g SET status = 'runnable', eligible_at = now(), await_deadline = NULL, updated_at = now()
  FROM unnest($4::bigint[], $5::text[]) AS p (id, presented)
  WHERE g.id = ANY (ARRAY[p.id]) AND (
    SELECT true FROM holdfast.signal s
    WHERE s.target_id = p.id AND s.name = ANY (g.awaits) AND s.id <> ALL (coalesce(p.presented::bigint[], '{}'))
    LIMIT 1
  )
  RETURNING g.queue
), parent AS MATERIALIZED (
  SELECT j.id, j.ended
  FROM (
    SELECT * FROM unnest(
      $6::bigint[], $7::bigint[], $8::integer[]
    ) AS j (id, epoch, ended) ORDER BY id
  ) j
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance p
    WHERE p.id = j.id AND p.claim_epoch = j.epoch AND p.status = 'awaiting_children' FOR NO KEY UPDATE
  ) waiting
), counted AS (
  UPDATE holdfast.instance g SET
    children_pending = greatest(g.children_pending - parent.ended, 0),
    status = CASE WHEN g.status = 'awaiting_children' AND g.children_pending <= parent.ended THEN 'runnable' ELSE g.status END::holdfast.instance_status,
    eligible_at = CASE WHEN g.children_pending <= parent.ended THEN now() ELSE g.eligible_at END,
    await_deadline = CASE WHEN g.children_pending > parent.ended THEN g.await_deadline END,
    updated_at = now()
  FROM parent WHERE g.id = ANY (ARRAY[parent.id])
  RETURNING g.queue, g.status
), waiting AS (
  UPDATE holdfast.instance g SET
    children_pending = least(s.landed, coalesce(s.join_count, s.landed)),
    status = CASE WHEN s.landed = 0 THEN 'runnable' ELSE 'awaiting_children' END::holdfast.instance_status,
    await_deadline = CASE WHEN s.landed > 0 THEN g.await_deadline END
  FROM unnest(
    $9::bigint[], $10::integer[], $11::integer[]
  ) AS s (id, landed, join_count)
  WHERE g.id = ANY (ARRAY[s.id])
  RETURNING g.queue, g.status
), noted AS (
  INSERT INTO holdfast.cascade (parent_id)
  SELECT c.id FROM unnest($12::bigint[]) AS c (id)
  WHERE (
    SELECT true FROM holdfast.instance child WHERE child.parent_id = c.id AND child.status NOT IN ('done', 'failed', 'cancelled') LIMIT 1
  )
  ON CONFLICT (parent_id) DO NOTHING
)
SELECT array_agg(DISTINCT queue) AS queues FROM (
  SELECT queue FROM woken
  UNION ALL SELECT queue FROM counted WHERE status = 'runnable'
  UNION ALL SELECT queue FROM waiting WHERE status = 'runnable'
) runnable
