import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { type RawBuilder, sql } from 'kysely'
import { statement } from '../statement.ts'

interface SignalBody {
  readonly projectId: ProjectId
  readonly name: string
  /** JSON text, checked with `storableJson`. */
  readonly payload: string
  readonly dedupKey?: string | undefined
  readonly traceparent?: string | undefined
}

export interface DeliveredRow {
  /** null: no live target. */
  readonly target_id: InstanceId | null
  readonly duplicate: boolean
  /** Queue that has something to run because of this signal. */
  readonly queue: string | null
}

/**
 * Puts a signal into the inbox of a live instance and wakes it if it waits for that name: one statement.
 *
 * The target is locked first (FOR NO KEY UPDATE) and everything else is decided on the locked row:
 * - against a park (R1–R3, R29): a flush that is parking the row holds its lock, so we wait and then see it parked and wake it;
 *   a flush that comes after us sees our signal in its recheck. Without the lock both could miss the other, and the instance
 *   would sleep beside its signal.
 * - against the end of the instance (N11): a flush that is ending the row holds its lock; afterwards the row no longer
 *   satisfies the WHERE, and the sender is told so instead of being thanked for a signal that nobody will read.
 * The wake's condition is on `target` (the locked version) and not on the row that the UPDATE finds through the snapshot, which
 * may be one version old. It may be the version from before the park, still executing; PostgreSQL checks constraints on the row it would make of
 * that one before it notices that there is a newer, so the SET has to be right for both: hence the CASE (without it, a signal that arrived as its
 * target was being parked failed with instance_executing_is_claimed).
 *
 * The target is named by a scalar and not by a join, so that it is always looked up by its key, whatever the statistics say.
 *
 * Served by: instance_pkey or instance_correlation, signal_receipt_pkey.
 */
const deliver = (target: RawBuilder<unknown>, body: SignalBody): RawBuilder<DeliveredRow> => sql<DeliveredRow>`
WITH target AS MATERIALIZED (
  SELECT id, status, awaits, queue FROM holdfast.instance
  WHERE ${target} AND project_id = ${body.projectId}::bigint AND status NOT IN ('done', 'failed', 'cancelled')
  FOR NO KEY UPDATE
), receipt AS (
  INSERT INTO holdfast.signal_receipt (target_id, dedup_key)
  SELECT id, ${body.dedupKey ?? null}::text FROM target WHERE ${body.dedupKey ?? null}::text IS NOT NULL
  ON CONFLICT (target_id, dedup_key) DO NOTHING
  RETURNING target_id
), fresh AS MATERIALIZED (
  SELECT target.* FROM target
  WHERE ${body.dedupKey ?? null}::text IS NULL OR EXISTS (SELECT FROM receipt)
), delivered AS (
  INSERT INTO holdfast.signal (target_id, name, payload, dedup_key, traceparent)
  SELECT id, ${body.name}::text, ${body.payload}::jsonb, ${body.dedupKey ?? null}::text, ${body.traceparent ?? null}::text FROM fresh
), woken AS (
  UPDATE holdfast.instance g SET
    status = CASE WHEN g.status = 'awaiting_signal' THEN 'runnable'::holdfast.instance_status ELSE g.status END,
    eligible_at = now(), updated_at = now()
  WHERE g.id = (SELECT id FROM fresh)
    AND (SELECT status FROM fresh) = 'awaiting_signal' AND ${body.name}::text = ANY ((SELECT awaits FROM fresh)::text[])
  RETURNING g.queue
)
SELECT (SELECT id FROM target) AS target_id,
  EXISTS (SELECT FROM target) AND NOT EXISTS (SELECT FROM fresh) AS duplicate,
  (SELECT queue FROM woken) AS queue`

const sample: SignalBody = { projectId: '1' as ProjectId, name: 'payment_confirmed', payload: '{}', dedupKey: 'payment-1' }

export const deliverSignalById = statement<SignalBody & { id: InstanceId }, DeliveredRow>(
  'engine.deliver_signal_by_id',
  (params) => deliver(sql`id = ${params.id}::bigint`, params),
  { ...sample, id: '1' as InstanceId },
)

export const deliverSignalByKey = statement<SignalBody & { correlationKey: string }, DeliveredRow>(
  'engine.deliver_signal_by_key',
  (params) => deliver(sql`correlation_guard = ${params.correlationKey}::text`, params),
  { ...sample, correlationKey: 'order-1' },
)
