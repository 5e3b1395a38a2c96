import type { InstanceId, OutcomeKind } from '@holdfast/contracts'
import { sql } from 'kysely'
import { arrayLiteral, column, statement } from '../statement.ts'

/** What one run of a step answered, ready to be stored. JSON fields are text, checked with `storableJson`. */
export interface StagedOutcome {
  readonly instanceId: InstanceId
  readonly claimEpoch: string
  readonly kind: OutcomeKind
  /** The step that ran and its attempt, for the history. */
  readonly fromStep: string
  readonly attempt: number
  readonly step?: string | undefined
  readonly state?: string | undefined
  readonly result?: string | undefined
  readonly error?: string | undefined
  readonly delayMs?: number | undefined
  readonly awaits?: readonly string[] | undefined
  readonly timeoutMs?: number | undefined
  /** Ids of the signals that the step was handed as awaited; a park of that step is not woken by these. */
  readonly presented?: readonly string[] | undefined
  /** The same ids, when the step moves on: deleted then. */
  readonly consumed?: readonly string[] | undefined
  readonly keepHistory: boolean
  /** By the worker's monotonic clock, before the moment of staging. */
  readonly claimedAgoUs: number
  readonly startedAgoUs: number
  readonly finishedAgoUs: number
  readonly traceparent?: string | undefined
}

export interface StageParams {
  readonly worker: string
  readonly outcomes: readonly StagedOutcome[]
}

/**
 * Makes outcomes durable; from here on nothing runs twice because of them. Answers the instances whose outcome is in; an outcome
 * that is missing from the answer is stale: its claim was taken away (R4), or it is staged already.
 *
 * The fence (claim_epoch matches, still leased) is read here and again when the flusher applies the row: this read only saves
 * the work, the other one decides. No lock: an outcome that commits while the reaper takes its claim away is stale at the flush.
 * LATERAL with OFFSET 0 keeps the planner from turning the join round: from statistics taken while nothing executed it would conclude that almost no row
 * is leased, walk the whole table and compare each row with the whole batch (1.4 s for 1,000 outcomes over 10,000 instances, instead of 25 ms).
 * Served by: instance_pkey; outcome_pkey makes a second outcome of one claim uncommittable.
 */
export const stageOutcomes = statement<StageParams, { instance_id: InstanceId }>(
  'engine.stage_outcomes',
  ({ worker, outcomes }) => sql`
INSERT INTO holdfast.outcome (
  instance_id, claim_epoch, kind, from_step, attempt, step, state, result, error, delay_ms, awaits, timeout_ms, presented, consumed,
  keep_history, claimed_ago_us, started_ago_us, finished_ago_us, traceparent, worker
)
SELECT o.instance_id, o.claim_epoch, o.kind, o.from_step, o.attempt, o.step, o.state::jsonb, o.result::jsonb, o.error::jsonb, o.delay_ms,
  o.awaits::text[], o.timeout_ms, o.presented::bigint[], o.consumed::bigint[],
  o.keep_history, o.claimed_ago_us, o.started_ago_us, o.finished_ago_us, o.traceparent, ${worker}::text
FROM unnest(
  ${column(outcomes, (row) => row.instanceId)}::bigint[],
  ${column(outcomes, (row) => row.claimEpoch)}::bigint[],
  ${column(outcomes, (row) => row.kind)}::holdfast.outcome_kind[],
  ${column(outcomes, (row) => row.fromStep)}::text[],
  ${column(outcomes, (row) => row.attempt)}::integer[],
  ${column(outcomes, (row) => row.step)}::text[],
  ${column(outcomes, (row) => row.state)}::text[],
  ${column(outcomes, (row) => row.result)}::text[],
  ${column(outcomes, (row) => row.error)}::text[],
  ${column(outcomes, (row) => row.delayMs)}::bigint[],
  ${column(outcomes, (row) => arrayLiteral(row.awaits))}::text[],
  ${column(outcomes, (row) => row.timeoutMs)}::bigint[],
  ${column(outcomes, (row) => arrayLiteral(row.presented))}::text[],
  ${column(outcomes, (row) => arrayLiteral(row.consumed))}::text[],
  ${column(outcomes, (row) => row.keepHistory)}::boolean[],
  ${column(outcomes, (row) => row.claimedAgoUs)}::bigint[],
  ${column(outcomes, (row) => row.startedAgoUs)}::bigint[],
  ${column(outcomes, (row) => row.finishedAgoUs)}::bigint[],
  ${column(outcomes, (row) => row.traceparent)}::text[]
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
RETURNING instance_id`,
  {
    worker: 'scheduler@host#1',
    outcomes: [
      {
        instanceId: '1' as InstanceId,
        claimEpoch: '1',
        kind: 'done',
        fromStep: 'start',
        attempt: 0,
        result: '{}',
        keepHistory: true,
        claimedAgoUs: 0,
        startedAgoUs: 0,
        finishedAgoUs: 0,
      },
    ],
  },
)
