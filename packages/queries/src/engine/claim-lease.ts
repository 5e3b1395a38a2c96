import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

/** Claims held by one worker, as parallel arrays. */
export interface Claims {
  readonly ids: readonly InstanceId[]
  readonly epochs: readonly string[]
}
export interface HeartbeatRow {
  readonly id: InstanceId
  readonly claim_epoch: string
  /** Somebody asked the instance to stop; its claim stands. */
  readonly cancelling: boolean
}
const sample = { ids: ['1' as InstanceId], epochs: ['1'] }

/**
 * Extends the leases of claims that still stand and returns those that do not (reaped, or claimed again since), and those that stand but were asked to stop.
 *
 * Locks: instance rows FOR NO KEY UPDATE SKIP LOCKED in id order (R16: heart-beat, reaper, flush and release never wait for
 * one another). A row that another one holds at this moment is neither renewed nor reported; the next beat decides.
 * Each claim is looked up by itself (LATERAL; `= ANY (ARRAY[…])` as in flush-outcomes), so that no statistics can turn the join round and make it quadratic.
 * Served by: instance_pkey.
 */
export const heartbeat = statement<Claims & { leaseMs: number }, HeartbeatRow>(
  'engine.heartbeat',
  ({ ids, epochs, leaseMs }) => sql`
WITH claims AS MATERIALIZED (
  SELECT * FROM unnest(${ids}::bigint[], ${epochs}::bigint[]) AS c (id, claim_epoch)
), standing AS MATERIALIZED (
  SELECT c.id FROM (SELECT * FROM claims ORDER BY id) c
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance g
    WHERE g.id = c.id AND g.claim_epoch = c.claim_epoch AND g.lease_expires_at IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED
  ) held
), renewed AS (
  UPDATE holdfast.instance g SET lease_expires_at = now() + ${leaseMs}::integer * interval '1 millisecond'
  FROM standing WHERE g.id = ANY (ARRAY[standing.id])
)
SELECT claims.id, claims.claim_epoch, claim.cancelling IS NOT NULL AS cancelling FROM claims
LEFT JOIN LATERAL (
  SELECT true AS stands, g.cancel_requested_at IS NOT NULL AS cancelling FROM holdfast.instance g
  WHERE g.id = claims.id AND g.claim_epoch = claims.claim_epoch AND g.lease_expires_at IS NOT NULL
  OFFSET 0
) claim ON true
WHERE claim.stands IS NULL OR claim.cancelling`,
  { ...sample, leaseMs: 60_000 },
)

export interface ReleasedRow {
  readonly id: InstanceId
  readonly queue: string
  readonly project_id: ProjectId
  readonly concurrency_key: string | null
}

/**
 * Hands claims back that were not run, at a graceful stop: runnable again at once, no attempt and no reclaim counted.
 * A claim with a staged outcome is not given back: the flusher will apply it.
 *
 * Locks and index as {@link heartbeat}.
 */
export const releaseClaims = statement<Claims, ReleasedRow>(
  'engine.release_claims',
  ({ ids, epochs }) => sql`
WITH standing AS MATERIALIZED (
  SELECT c.id
  FROM (SELECT * FROM unnest(${ids}::bigint[], ${epochs}::bigint[]) AS claims (id, claim_epoch) ORDER BY id) c
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance g
    WHERE g.id = c.id AND g.claim_epoch = c.claim_epoch AND g.lease_expires_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch)
    FOR NO KEY UPDATE OF g SKIP LOCKED
  ) held
)
UPDATE holdfast.instance g SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL, updated_at = now()
FROM standing WHERE g.id = ANY (ARRAY[standing.id])
RETURNING g.id, g.queue, g.project_id, g.concurrency_key`,
  sample,
)
