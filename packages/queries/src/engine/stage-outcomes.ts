import type { InstanceId, OutcomeKind } from '@holdfast/contracts'
import { type RawBuilder, sql } from 'kysely'
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
  /** The concurrency key that the claim held. */
  readonly heldKey?: string | undefined
  /** The next step has `concurrencyKey`, which may be absent; false: it keeps the key. */
  readonly keyChange?: boolean | undefined
  readonly concurrencyKey?: string | undefined
  /** Of the next step: `name` or `name:partition` of a rate limit. */
  readonly rateKey?: string | undefined
  readonly rateWeight?: number | undefined
  /** A JSON array of children to spawn; see {@link SpawnedChild}. */
  readonly children?: string | undefined
  /** How many of them have to end before the parent goes on. Absent: all. */
  readonly joinCount?: number | undefined
  /** Of `continue_as`. */
  readonly version?: number | undefined
  /** Delete the instance instead of keeping it as done. */
  readonly discard?: boolean | undefined
  readonly keepHistory: boolean
  /** By the worker's monotonic clock, before the moment of staging. */
  readonly claimedAgoUs: number
  readonly startedAgoUs: number
  readonly finishedAgoUs: number
  readonly traceparent?: string | undefined
}

/** One element of `children`; its keys are read in SQL. */
export interface SpawnedChild {
  readonly machine: string
  readonly version?: number | undefined
  readonly queue?: string | undefined
  readonly state?: unknown
  readonly priority?: number | undefined
  readonly delay_ms?: number | undefined
  readonly correlation_key?: string | undefined
  readonly correlation_scope?: readonly string[] | undefined
  readonly concurrency_key?: string | undefined
  readonly rate_key?: string | undefined
  readonly rate_weight?: number | undefined
}

export interface StageParams {
  readonly worker: string
  readonly outcomes: readonly StagedOutcome[]
}

const NAMES =
  sql.raw(`instance_id, claim_epoch, kind, from_step, attempt, step, state, result, error, delay_ms, awaits, timeout_ms, presented, consumed,
  held_key, key_change, concurrency_key, rate_key, rate_weight, children, join_count, version, discard,
  keep_history, claimed_ago_us, started_ago_us, finished_ago_us, traceparent`)

/** A batch of outcomes as rows `o`, in the types of the table: what a scheduler stages, and what one that flushes itself applies at once. */
export const outcomeRows = (outcomes: readonly StagedOutcome[]): RawBuilder<unknown> => sql`
SELECT u.instance_id, u.claim_epoch, u.kind, u.from_step, u.attempt, u.step, u.state::jsonb, u.result::jsonb, u.error::jsonb, u.delay_ms,
  u.awaits::text[], u.timeout_ms, u.presented::bigint[], u.consumed::bigint[],
  u.held_key, coalesce(u.key_change, false) AS key_change, u.concurrency_key, u.rate_key, u.rate_weight, u.children::jsonb, u.join_count, u.version,
  coalesce(u.discard, false) AS discard, u.keep_history, u.claimed_ago_us, u.started_ago_us, u.finished_ago_us, u.traceparent
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
  ${column(outcomes, (row) => row.heldKey)}::text[],
  ${column(outcomes, (row) => row.keyChange)}::boolean[],
  ${column(outcomes, (row) => row.concurrencyKey)}::text[],
  ${column(outcomes, (row) => row.rateKey)}::text[],
  ${column(outcomes, (row) => row.rateWeight)}::integer[],
  ${column(outcomes, (row) => row.children)}::text[],
  ${column(outcomes, (row) => row.joinCount)}::integer[],
  ${column(outcomes, (row) => row.version)}::integer[],
  ${column(outcomes, (row) => row.discard)}::boolean[],
  ${column(outcomes, (row) => row.keepHistory)}::boolean[],
  ${column(outcomes, (row) => row.claimedAgoUs)}::bigint[],
  ${column(outcomes, (row) => row.startedAgoUs)}::bigint[],
  ${column(outcomes, (row) => row.finishedAgoUs)}::bigint[],
  ${column(outcomes, (row) => row.traceparent)}::text[]
) AS u (${NAMES})`

export const sampleOutcomes: readonly StagedOutcome[] = [
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
]

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
INSERT INTO holdfast.outcome (${NAMES}, worker)
SELECT o.*, ${worker}::text
FROM (${outcomeRows(outcomes)}) o
CROSS JOIN LATERAL (
  SELECT FROM holdfast.instance g
  WHERE g.id = o.instance_id AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
  OFFSET 0
) standing
ON CONFLICT (instance_id, claim_epoch) DO NOTHING
RETURNING instance_id`,
  { worker: 'scheduler@host#1', outcomes: sampleOutcomes },
)

/**
 * Locks the instance of a claim that stands, until the transaction ends: the first statement of a step's own transaction (`ctx.commit`). Neither the reaper nor the
 * same step run again elsewhere can come between it and the commit. No row: the claim is over, and nothing may be written.
 * Locks: the instance FOR NO KEY UPDATE. Served by: instance_pkey.
 */
export const lockClaim = statement<{ id: InstanceId; claimEpoch: string }, { id: InstanceId }>(
  'engine.lock_claim',
  ({ id, claimEpoch }) => sql<{ id: InstanceId }>`
SELECT id FROM holdfast.instance
WHERE id = ${id}::bigint AND claim_epoch = ${claimEpoch}::bigint AND lease_expires_at IS NOT NULL AND cancel_requested_at IS NULL
FOR NO KEY UPDATE`,
  { id: '1' as InstanceId, claimEpoch: '1' },
)

/** Bounds the transaction that foreign code runs in: it holds a lock. */
export const boundTransaction = statement<{ statementMs: number; idleMs: number }, Record<never, never>>(
  'engine.bound_transaction',
  ({ statementMs, idleMs }) => sql`
SELECT set_config('statement_timeout', ${String(statementMs)}::text, true),
  set_config('idle_in_transaction_session_timeout', ${String(idleMs)}::text, true)`,
  { statementMs: 30_000, idleMs: 10_000 },
)
