import type { ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'
import { type ScheduleRow, scheduleColumns } from './schedule-row.ts'

export interface BeforePutRow {
  /** The clock that ticks are computed from: the database's, so that no host's can be wrong (digest N17). */
  readonly now: Date
  /** Of the schedule, if there is one that has fired. */
  readonly last_at: Date | null
  /** Some scheduler has declared machines, and this one, in this version, is not among them. */
  readonly unknown_machine: boolean
}

/** What has to be known before a schedule's next tick can be computed. Served by: schedule_pkey, machine_pkey. */
export const lookBeforePut = statement<{ projectId: ProjectId; name: string; machine: string; version: number | undefined }, BeforePutRow>(
  'schedules.look_before_put',
  ({ projectId, name, machine, version }) => sql<BeforePutRow>`
SELECT now() AS now,
  (SELECT s.last_at FROM holdfast.schedule s WHERE s.project_id = ${projectId}::bigint AND s.name = ${name}::text) AS last_at,
  EXISTS (SELECT FROM holdfast.machine) AND NOT EXISTS (
    SELECT FROM holdfast.machine m WHERE m.name = ${machine}::text AND (${version ?? null}::integer IS NULL OR m.version = ${version ?? null}::integer)
  ) AS unknown_machine`,
  { projectId: '1' as ProjectId, name: 'nightly', machine: 'report', version: undefined },
)

export interface PutSchedule {
  readonly projectId: ProjectId
  readonly name: string
  readonly cron: string
  readonly timezone: string
  readonly machine: string
  readonly version: number | undefined
  /** JSON text, checked with `storableJson`. */
  readonly input: string
  readonly queue: string | undefined
  readonly priority: number
  readonly concurrencyKey: string | undefined
  readonly catchUp: ScheduleRow['catch_up']
  readonly overlap: ScheduleRow['overlap']
  /** Absent: paused. */
  readonly nextAt: Date | undefined
}

/**
 * Defines a schedule or replaces its definition; `last_at` stays.
 * A tick that was fired since its next one was computed makes it violate schedule_next_is_after_last: compute again.
 *
 * Locks: the schedule's row; it waits for a firing under way, and makes one that has been computed before it fire nothing (revision).
 * Served by: schedule_pkey.
 */
export const putSchedule = statement<PutSchedule, ScheduleRow & { readonly created: boolean }>(
  'schedules.put',
  (given) => sql<ScheduleRow & { readonly created: boolean }>`
INSERT INTO holdfast.schedule AS s (
  project_id, name, cron, timezone, machine, version, input, queue, priority, concurrency_key, catch_up, overlap, next_at, due_at, paused_at
)
SELECT ${given.projectId}::bigint, ${given.name}::text, ${given.cron}::text, ${given.timezone}::text, ${given.machine}::text,
  ${given.version ?? null}::integer, ${given.input}::text::jsonb, ${given.queue ?? null}::text, ${given.priority}::smallint,
  ${given.concurrencyKey ?? null}::text, ${given.catchUp}::text, ${given.overlap}::text, n.next_at, n.next_at,
  CASE WHEN n.next_at IS NULL THEN now() END
FROM (SELECT ${given.nextAt?.toISOString() ?? null}::timestamptz AS next_at) n
ON CONFLICT (project_id, name) DO UPDATE SET
  revision = s.revision + 1, cron = excluded.cron, timezone = excluded.timezone, machine = excluded.machine, version = excluded.version,
  input = excluded.input, queue = excluded.queue, priority = excluded.priority, concurrency_key = excluded.concurrency_key,
  catch_up = excluded.catch_up, overlap = excluded.overlap, next_at = excluded.next_at, due_at = excluded.due_at,
  paused_at = CASE WHEN excluded.paused_at IS NOT NULL THEN coalesce(s.paused_at, excluded.paused_at) END,
  failures = 0, last_error = NULL, last_error_at = NULL, updated_at = now()
RETURNING ${scheduleColumns}, s.xmax = 0 AS created`,
  {
    projectId: '1' as ProjectId,
    name: 'nightly',
    cron: '0 3 * * *',
    timezone: 'UTC',
    machine: 'report',
    version: undefined,
    input: '{}',
    queue: undefined,
    priority: 0,
    concurrencyKey: undefined,
    catchUp: 'none',
    overlap: 'allow',
    nextAt: new Date('2030-01-01T03:00:00Z'),
  },
)

/** Removes a schedule; what it has started goes on. Answers nothing if there is none. Locks: its row. Served by: schedule_pkey. */
export const deleteSchedule = statement<{ projectId: ProjectId; name: string }, { name: string }>(
  'schedules.delete',
  ({ projectId, name }) => sql<{ name: string }>`
DELETE FROM holdfast.schedule WHERE project_id = ${projectId}::bigint AND name = ${name}::text RETURNING name`,
  { projectId: '1' as ProjectId, name: 'nightly' },
)
