-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.stage_outcomes */ 
INSERT INTO holdfast.outcome (instance_id, claim_epoch, kind, from_step, attempt, step, state, result, error, delay_ms, awaits, timeout_ms, presented, consumed,
  held_key, key_change, concurrency_key, rate_key, rate_weight, children, join_count, version, discard,
  keep_history, claimed_ago_us, started_ago_us, finished_ago_us, traceparent, worker)
SELECT o.*, $1::text
FROM (
SELECT u.instance_id, u.claim_epoch, u.kind, u.from_step, u.attempt, u.step, u.state::jsonb, u.result::jsonb, u.error::jsonb, u.delay_ms,
  u.awaits::text[], u.timeout_ms, u.presented::bigint[], u.consumed::bigint[],
  u.held_key, coalesce(u.key_change, false) AS key_change, u.concurrency_key, u.rate_key, u.rate_weight, u.children::jsonb, u.join_count, u.version,
  coalesce(u.discard, false) AS discard, u.keep_history, u.claimed_ago_us, u.started_ago_us, u.finished_ago_us, u.traceparent
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
  $16::text[],
  $17::boolean[],
  $18::text[],
  $19::text[],
  $20::integer[],
  $21::text[],
  $22::integer[],
  $23::integer[],
  $24::boolean[],
  $25::boolean[],
  $26::bigint[],
  $27::bigint[],
  $28::bigint[],
  $29::text[]
) AS u (instance_id, claim_epoch, kind, from_step, attempt, step, state, result, error, delay_ms, awaits, timeout_ms, presented, consumed,
  held_key, key_change, concurrency_key, rate_key, rate_weight, children, join_count, version, discard,
  keep_history, claimed_ago_us, started_ago_us, finished_ago_us, traceparent)) o
CROSS JOIN LATERAL (
  SELECT FROM holdfast.instance g
  WHERE g.id = o.instance_id AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
  OFFSET 0
) standing
ON CONFLICT (instance_id, claim_epoch) DO NOTHING
RETURNING instance_id
