import type { InstanceId, ProjectId, TerminalStatus } from '@holdfast/contracts'
import { sql } from 'kysely'
import { arrayLiteral, column, statement } from '../statement.ts'

export interface NewInstance {
  readonly machine: string
  /** Default: the newest declared version, else 1. */
  readonly version?: number | undefined
  /** Default: the queue its machine declares, else `default`. */
  readonly queue?: string | undefined
  /** JSON text, checked with `storableJson`. Default `{}`. */
  readonly state?: string | undefined
  /** Lower runs first. Default 0. */
  readonly priority?: number | undefined
  /** From now, by the database's clock; not together with `eligibleAt`. */
  readonly delayMs?: number | undefined
  /** An ISO 8601 instant. */
  readonly eligibleAt?: string | undefined
  readonly correlationKey?: string | undefined
  readonly correlationScope?: readonly TerminalStatus[] | undefined
  readonly concurrencyKey?: string | undefined
  /** `name` or `name:partition` of a rate limit of the project, for the first step. */
  readonly rateKey?: string | undefined
  /** Tokens of it that the first step takes. Default 1. */
  readonly rateWeight?: number | undefined
  readonly traceparent?: string | undefined
}

export interface EnqueueParams {
  readonly projectId: ProjectId
  readonly instances: readonly NewInstance[]
  /** Refuse the whole batch if it names a machine that no scheduler has declared, provided that any has declared one. */
  readonly declaredOnly: boolean
}

export interface EnqueueRow {
  /** In the order given. An id that is not in `inserted`, because its key is occupied, was drawn in vain. */
  readonly ids: InstanceId[] | null
  readonly inserted: InstanceId[] | null
  /** Machines that made the batch be refused; null when it was not. */
  readonly unknown: string[] | null
  /** Rate limits that the project does not have, or whose burst is smaller than the weight; nothing was inserted then. */
  readonly unlimited: string[] | null
  /** Queues that have something to run now. */
  readonly queues: string[] | null
  /** Milliseconds until the first of the delayed ones is due. */
  readonly due_in_ms: number | null
}

/**
 * Inserts one or many instances in one statement.
 *
 * A rate limit is checked where it is declared: a name that the project does not have, or a weight above its burst, would wait for ever.
 *
 * Locks: nothing but its own index entries. Two batches with the same new keys meet on the unique index instance_correlation;
 * rows go in ordered by key, so that they meet in one order and the later one waits instead of deadlocking (digest R15).
 * A key that is occupied costs its row and no other: ON CONFLICT DO NOTHING.
 */
export const enqueue = statement<EnqueueParams, EnqueueRow>(
  'engine.enqueue',
  ({ projectId, instances, declaredOnly }) => sql<EnqueueRow>`
WITH given AS MATERIALIZED (
  SELECT nextval('holdfast.instance_id_seq') AS id, g.*
  FROM unnest(
    ${column(instances, (row) => row.machine)}::text[],
    ${column(instances, (row) => row.version)}::integer[],
    ${column(instances, (row) => row.queue)}::text[],
    ${column(instances, (row) => row.state)}::text[],
    ${column(instances, (row) => row.priority)}::smallint[],
    ${column(instances, (row) => row.delayMs)}::bigint[],
    ${column(instances, (row) => row.eligibleAt)}::timestamptz[],
    ${column(instances, (row) => row.correlationKey)}::text[],
    ${column(instances, (row) => arrayLiteral(row.correlationScope))}::text[],
    ${column(instances, (row) => row.concurrencyKey)}::text[],
    ${column(instances, (row) => row.rateKey)}::text[],
    ${column(instances, (row) => row.rateWeight)}::integer[],
    ${column(instances, (row) => row.traceparent)}::text[]
  ) WITH ORDINALITY AS g (
    machine, version, queue, state, priority, delay_ms, eligible_at, correlation_key, correlation_scope, concurrency_key,
    rate_key, rate_weight, traceparent, ord
  )
), input AS MATERIALIZED (
  SELECT given.id, given.ord, given.machine, given.state, given.priority, given.correlation_key, given.correlation_scope,
    given.concurrency_key, given.rate_key, coalesce(given.rate_weight, 1) AS rate_weight, given.traceparent, declared.version IS NOT NULL AS declared,
    coalesce(given.version, declared.version, 1) AS version,
    coalesce(given.queue, declared.queue, 'default') AS queue,
    coalesce(given.eligible_at, now() + given.delay_ms * interval '1 millisecond', now()) AS eligible_at
  FROM given
  LEFT JOIN LATERAL (
    SELECT m.version, m.queue FROM holdfast.machine m
    WHERE m.name = given.machine AND (given.version IS NULL OR m.version = given.version)
    ORDER BY m.version DESC LIMIT 1
  ) declared ON true
), unknown AS (
  SELECT DISTINCT machine FROM input
  WHERE ${declaredOnly}::boolean AND NOT declared AND EXISTS (SELECT FROM holdfast.machine)
), unlimited AS (
  SELECT DISTINCT rate_key || CASE WHEN p.name IS NULL THEN '' ELSE format(' (weight %s, burst %s)', rate_weight, p.burst) END AS complaint
  FROM input
  LEFT JOIN holdfast.limit_policy p
    ON p.project_id = ${projectId}::bigint AND p.kind = 'rate' AND p.name = split_part(input.rate_key, ':', 1)
  WHERE rate_key IS NOT NULL AND coalesce(rate_weight > p.burst, true)
), inserted AS (
  INSERT INTO holdfast.instance (
    id, project_id, machine, version, queue, state, priority, status, eligible_at,
    correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, traceparent
  ) OVERRIDING SYSTEM VALUE
  SELECT id, ${projectId}::bigint, machine, version, queue, coalesce(state::jsonb, '{}'), coalesce(priority, 0::smallint),
    CASE WHEN eligible_at > now() THEN 'scheduled' ELSE 'runnable' END::holdfast.instance_status, eligible_at,
    correlation_key, coalesce(correlation_scope::holdfast.instance_status[], '{}'), concurrency_key, rate_key, rate_weight, traceparent
  FROM input
  WHERE NOT EXISTS (SELECT FROM unknown) AND NOT EXISTS (SELECT FROM unlimited)
  ORDER BY correlation_key, ord
  ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
  RETURNING id, queue, status, eligible_at
)
SELECT
  (SELECT array_agg(id ORDER BY ord) FROM input) AS ids,
  (SELECT array_agg(id) FROM inserted) AS inserted,
  (SELECT array_agg(machine ORDER BY machine) FROM unknown) AS unknown,
  (SELECT array_agg(complaint ORDER BY complaint) FROM unlimited) AS unlimited,
  (SELECT array_agg(DISTINCT queue) FROM inserted WHERE status = 'runnable') AS queues,
  (SELECT ceil(extract(epoch FROM min(eligible_at) - now()) * 1000)::float8 FROM inserted WHERE status = 'scheduled') AS due_in_ms`,
  {
    projectId: '1' as ProjectId,
    instances: [{ machine: 'checkout', correlationKey: 'order-1', correlationScope: ['done'] }],
    declaredOnly: true,
  },
)

/**
 * Who occupies these keys now. A statement of its own, because the occupant may have committed after the insert's snapshot; a key
 * that is missing from the answer has become free, and its insert is worth another try.
 * Served by: instance_correlation.
 */
export const findOccupants = statement<
  { projectId: ProjectId; correlationKeys: readonly string[] },
  { id: InstanceId; correlation_key: string }
>(
  'engine.find_occupants',
  ({ projectId, correlationKeys }) => sql`
SELECT id, correlation_guard AS correlation_key FROM holdfast.instance
WHERE project_id = ${projectId}::bigint AND correlation_guard = ANY (${correlationKeys}::text[])`,
  { projectId: '1' as ProjectId, correlationKeys: ['order-1'] },
)
