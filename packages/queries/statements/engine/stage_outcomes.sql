-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.stage_outcomes */ 
INSERT INTO holdfast.outcome (
  instance_id, claim_epoch, kind, from_step, attempt, step, state, result, error, delay_ms, awaits, timeout_ms, presented, consumed,
  keep_history, claimed_ago_us, started_ago_us, finished_ago_us, traceparent, worker
)
SELECT o.instance_id, o.claim_epoch, o.kind, o.from_step, o.attempt, o.step, o.state::jsonb, o.result::jsonb, o.error::jsonb, o.delay_ms,
  o.awaits::text[], o.timeout_ms, o.presented::bigint[], o.consumed::bigint[],
  o.keep_history, o.claimed_ago_us, o.started_ago_us, o.finished_ago_us, o.traceparent, $1::text
FROM unnest(
  $2::bigint[],
  $3::bigint[],
  $4::holdfast.outcome_kind[],
  $5::text[],
  $6::integer[],
  $7::text[],
  $8::text[],
  $9::text[],
  $10::text[],
  $11::bigint[],
  $12::text[],
  $13::bigint[],
  $14::text[],
  $15::text[],
  $16::boolean[],
  $17::bigint[],
  $18::bigint[],
  $19::bigint[],
  $20::text[]
) AS o (
  instance_id, claim_epoch, kind, from_step, attempt, step, state, result, error, delay_ms, awaits, timeout_ms, presented, consumed,
  keep_history, claimed_ago_us, started_ago_us, finished_ago_us, traceparent
)
CROSS JOIN LATERAL (
  SELECT FROM holdfast.instance g
  WHERE g.id = o.instance_id AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
  OFFSET 0
) standing
ON CONFLICT (instance_id, claim_epoch) DO NOTHING
RETURNING instance_id
