import type { FailureRecord, InstanceId, InstanceStatus, JsonValue, OutcomeKind, ProjectId } from '@holdfast/contracts'
import { type RawBuilder, sql } from 'kysely'
import { statement } from '../statement.ts'

export interface InstanceRow {
  readonly id: InstanceId
  readonly machine: string
  readonly version: number
  readonly step: string
  readonly status: InstanceStatus
  readonly state: JsonValue
  readonly result: JsonValue
  readonly error: FailureRecord | null
  readonly attempt: number
  readonly queue: string
  readonly priority: number
  readonly eligible_at: Date
  readonly awaits: string[] | null
  readonly await_deadline: Date | null
  readonly parent_id: InstanceId | null
  readonly children_pending: number
  readonly correlation_key: string | null
  readonly concurrency_key: string | null
  readonly rate_key: string | null
  readonly rate_weight: number
  /** Infinity for one that waits for a rate of 0. */
  readonly throttled_until: Date | number | null
  readonly cancel_requested_at: Date | null
  readonly traceparent: string | null
  readonly inserted_at: Date
  readonly updated_at: Date
}

const columns = sql.raw(
  `id, machine, version, step, status, state, result, error, attempt, queue, priority, eligible_at, awaits, await_deadline, parent_id,
  children_pending, correlation_key, concurrency_key, rate_key, rate_weight, throttled_until, cancel_requested_at, traceparent, inserted_at, updated_at`,
)

/** Served by: instance_pkey. */
export const getInstances = statement<{ projectId: ProjectId; ids: readonly InstanceId[] }, InstanceRow>(
  'engine.get_instances',
  ({ projectId, ids }) => sql<InstanceRow>`
SELECT ${columns} FROM holdfast.instance WHERE id = ANY (${ids}::bigint[]) AND project_id = ${projectId}::bigint`,
  { projectId: '1' as ProjectId, ids: ['1' as InstanceId] },
)

export interface ListParams {
  readonly projectId: ProjectId
  readonly machine?: string | undefined
  readonly status?: InstanceStatus | undefined
  readonly queue?: string | undefined
  readonly correlationKey?: string | undefined
  readonly parentId?: InstanceId | undefined
  readonly after?: InstanceId | undefined
  readonly limit: number
}

const page = (
  state: RawBuilder<unknown>,
  { projectId, machine, status, queue, correlationKey, parentId, after, limit }: ListParams,
): RawBuilder<unknown> => sql`
  SELECT id FROM holdfast.instance
  WHERE project_id = ${projectId}::bigint AND ${state}
    AND id < coalesce(${after ?? null}::bigint, 9223372036854775807)
    AND (${machine ?? null}::text IS NULL OR machine = ${machine ?? null}::text)
    AND (${status ?? null}::holdfast.instance_status IS NULL OR status = ${status ?? null}::holdfast.instance_status)
    AND (${queue ?? null}::text IS NULL OR queue = ${queue ?? null}::text)
    AND (${correlationKey ?? null}::text IS NULL OR correlation_key = ${correlationKey ?? null}::text)
    AND (${parentId ?? null}::bigint IS NULL OR parent_id = ${parentId ?? null}::bigint)
  ORDER BY id DESC LIMIT ${limit}::integer`

/**
 * A page, newest first, keyed by id; a rare filter walks the project's rows until the page is full.
 * Served by: instance_project for what does not execute, instance_lease for what does: some thousands of the whole system at most, and an index entry less for each
 * claim, which costs 5 us.
 */
export const listInstances = statement<ListParams, InstanceRow>(
  'engine.list_instances',
  (params) => sql<InstanceRow>`
SELECT ${columns} FROM holdfast.instance WHERE id = ANY (ARRAY(
  SELECT id FROM (
    (${page(sql`status <> 'executing'`, params)})
    UNION ALL
    (${page(sql`status = 'executing' AND lease_expires_at IS NOT NULL`, params)})
  ) both_pages ORDER BY id DESC LIMIT ${params.limit}::integer
)) ORDER BY id DESC`,
  { projectId: '1' as ProjectId, limit: 50 },
)

/** Statuses of instances that somebody waits for, in one statement for all waiters of a process. Served by: instance_pkey. */
export const getStatuses = statement<{ ids: readonly InstanceId[] }, { id: InstanceId; status: InstanceStatus }>(
  'engine.get_statuses',
  ({ ids }) => sql`SELECT id, status FROM holdfast.instance WHERE id = ANY (${ids}::bigint[])`,
  { ids: ['1' as InstanceId] },
)

export interface EndRow {
  readonly id: InstanceId
  readonly status: InstanceStatus
  readonly result: JsonValue
  readonly error: FailureRecord | null
}

/** What became of an instance, for who waited for it in a process of the engine: of any project, as everything else there. Served by: instance_pkey. */
export const getEnd = statement<{ id: InstanceId }, EndRow>(
  'engine.get_end',
  ({ id }) => sql<EndRow>`SELECT id, status, result, error FROM holdfast.instance WHERE id = ${id}::bigint`,
  { id: '1' as InstanceId },
)

export interface TransitionRow {
  readonly kind: OutcomeKind
  readonly from_step: string
  readonly to_step: string | null
  readonly to_status: InstanceStatus
  readonly attempt: number
  readonly claim_epoch: string
  readonly worker: string | null
  readonly error: JsonValue
  readonly claimed_at: Date | null
  readonly started_at: Date | null
  readonly finished_at: Date | null
  readonly flushed_at: Date
}

/** Oldest first, at most `limit`. Served by: transition_instance of each partition. */
export const getHistory = statement<{ id: InstanceId; limit: number }, TransitionRow>(
  'engine.get_history',
  ({ id, limit }) => sql<TransitionRow>`
SELECT kind, from_step, to_step, to_status, attempt, claim_epoch, worker, error, claimed_at, started_at, finished_at, flushed_at
FROM holdfast.transition WHERE instance_id = ${id}::bigint ORDER BY claim_epoch, flushed_at LIMIT ${limit}::integer`,
  { id: '1' as InstanceId, limit: 1000 },
)
