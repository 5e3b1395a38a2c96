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

/** All that is given has to match. */
interface InstanceFilter {
  readonly machine?: string | undefined
  readonly status?: InstanceStatus | undefined
  readonly queue?: string | undefined
  readonly correlationKey?: string | undefined
  readonly parentId?: InstanceId | undefined
}

const matches = ({ machine, status, queue, correlationKey, parentId }: InstanceFilter): RawBuilder<unknown> => sql`
    AND (${machine ?? null}::text IS NULL OR machine = ${machine ?? null}::text)
    AND (${status ?? null}::holdfast.instance_status IS NULL OR status = ${status ?? null}::holdfast.instance_status)
    AND (${queue ?? null}::text IS NULL OR queue = ${queue ?? null}::text)
    AND (${correlationKey ?? null}::text IS NULL OR correlation_key = ${correlationKey ?? null}::text)
    AND (${parentId ?? null}::bigint IS NULL OR parent_id = ${parentId ?? null}::bigint)`

export interface ListParams extends InstanceFilter {
  readonly projectId: ProjectId
  readonly after?: InstanceId | undefined
  readonly limit: number
}

/** With `coalesce`, so that a generic plan begins at `after` too instead of walking up to it. */
const below = (after: InstanceId | undefined): RawBuilder<unknown> => sql`id < coalesce(${after ?? null}::bigint, 9223372036854775807)`

const page = (state: RawBuilder<unknown>, params: ListParams): RawBuilder<unknown> => sql`
  SELECT id FROM holdfast.instance
  WHERE project_id = ${params.projectId}::bigint AND ${state}
    AND ${below(params.after)}${matches(params)}
  ORDER BY id DESC LIMIT ${params.limit}::integer`

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

export interface MatchParams extends InstanceFilter {
  readonly projectId: ProjectId
  /** In one of these, and not asked to stop. */
  readonly among: readonly InstanceStatus[]
  readonly after?: InstanceId | undefined
  /** Most instances that are looked at. */
  readonly look: number
  readonly limit: number
}

export interface MatchRow {
  /** Newest first. */
  readonly ids: InstanceId[] | null
  /** Where to go on; null if nothing is left to look at. */
  readonly next: InstanceId | null
}

const lookedAt = (state: RawBuilder<unknown>, { projectId, after, look }: MatchParams): RawBuilder<unknown> => sql`
    SELECT id, status, machine, queue, correlation_key, parent_id, cancel_requested_at FROM holdfast.instance
    WHERE project_id = ${projectId}::bigint AND ${state} AND ${below(after)}
    ORDER BY id DESC LIMIT ${look}::integer`

/**
 * The newest instances below `after` that match, for a bulk operation. Looks at `look` instances at most, whatever the filter, and says where to go on: what one call costs does
 * not depend on how rare a match is or on how many instances there are (20,000 looked at: 12 ms).
 * Served by: instance_project, instance_lease; see {@link listInstances}.
 */
export const matchInstances = statement<MatchParams, MatchRow>(
  'engine.match_instances',
  (params) => sql<MatchRow>`
WITH looked AS MATERIALIZED (
  SELECT * FROM (
    (${lookedAt(sql`status <> 'executing'`, params)})
    UNION ALL
    (${lookedAt(sql`status = 'executing' AND lease_expires_at IS NOT NULL`, params)})
  ) both_windows ORDER BY id DESC LIMIT ${params.look}::integer
), matching AS MATERIALIZED (
  SELECT id FROM looked
  WHERE status = ANY (${params.among}::holdfast.instance_status[]) AND (status <> 'executing' OR cancel_requested_at IS NULL)${matches(params)}
  ORDER BY id DESC LIMIT ${params.limit}::integer
)
SELECT (SELECT array_agg(id ORDER BY id DESC) FROM matching) AS ids,
  CASE WHEN (SELECT count(*) FROM matching) >= ${params.limit}::integer THEN (SELECT min(id) FROM matching)
    WHEN (SELECT count(*) FROM looked) >= ${params.look}::integer THEN (SELECT min(id) FROM looked) END AS next`,
  { projectId: '1' as ProjectId, among: ['failed', 'cancelled'], look: 20_000, limit: 1_000 },
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
