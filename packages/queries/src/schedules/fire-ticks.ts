import type { ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { column, statement } from '../statement.ts'

/** What was computed for one schedule from the row that had this revision. */
export interface Firing {
  readonly projectId: ProjectId
  readonly name: string
  readonly revision: string
  /** Ticks to make instances of, oldest first; none where those that were due are not wanted. */
  readonly ticks: readonly Date[]
  /** The first tick after all of them, and after now. */
  readonly nextAt: Date
  /** The newest tick that was missed and is not made up for. */
  readonly missedAt?: Date | undefined
}

export interface FiredRow {
  readonly project_id: ProjectId
  readonly name: string
  /** No scheduler has declared its machine: nothing was done. */
  readonly unknown_machine: boolean
  /** Instances that were inserted. */
  readonly fired: number
  /** Ticks without one, because the run before was still live. */
  readonly overlapped: number
  /** Where they wait to be claimed; null when none was inserted. */
  readonly queue: string | null
}

/**
 * Fires ticks: inserts their instances and moves their schedules on, in one statement. Answers a row for each schedule that was still as it was read; the others have been
 * dealt with by somebody else.
 *
 * Exactly once, by three things that each suffice: the schedule has the revision that was read, looked at again under its lock; a tick that has been fired is left
 * out; and the primary key schedule_run_pkey, without which the instance cannot commit (a violation is a lost race, see lost-race).
 *
 * `overlap`: `skip` gives the runs one correlation key, so that a second live one has nowhere to be written; `queue` gives them one serial key. That key begins with a colon
 * because no gate can have an empty name: nobody can make it a gate of several by declaring one.
 * Where a string of the input (not a key of it) is `{{tick}}` and nothing else, the instant of the tick stands instead. A quote inside of a string has a backslash before it, so one without is
 * the beginning or the end of a string.
 *
 * Locks: schedules FOR NO KEY UPDATE SKIP LOCKED, by project and name; with `skip`, an index entry of instance_correlation, only where an insert of the same key has
 * not committed, by key. Served by: schedule_pkey, schedule_run_pkey, machine_pkey.
 */
export const fireTicks = statement<{ firings: readonly Firing[] }, FiredRow>(
  'schedules.fire_ticks',
  ({ firings }) => {
    const ticks = firings.flatMap((firing, index) => firing.ticks.map((tick) => ({ ord: index + 1, tick: tick.toISOString() })))
    return sql<FiredRow>`
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(
    ${column(firings, (row) => row.projectId)}::bigint[],
    ${column(firings, (row) => row.name)}::text[],
    ${column(firings, (row) => row.revision)}::bigint[],
    ${column(firings, (row) => row.nextAt.toISOString())}::timestamptz[],
    ${column(firings, (row) => row.missedAt?.toISOString())}::timestamptz[]
  ) WITH ORDINALITY AS g (project_id, name, revision, next_at, missed_at, ord)
), locked AS MATERIALIZED (
  SELECT given.ord, given.next_at, given.missed_at, s.project_id, s.name, s.machine, s.version, s.input, s.queue, s.priority, s.concurrency_key, s.overlap
  FROM given
  JOIN holdfast.schedule s ON s.project_id = given.project_id AND s.name = given.name AND s.revision = given.revision
  ORDER BY s.project_id, s.name
  FOR NO KEY UPDATE OF s SKIP LOCKED
), declared AS MATERIALIZED (
  SELECT locked.*, m.version IS NOT NULL AS known, m.version AS machine_version, coalesce(locked.queue, m.queue) AS instance_queue,
    CASE locked.overlap WHEN 'skip' THEN 'schedule:' || locked.name END AS correlation_key
  FROM locked
  LEFT JOIN LATERAL (
    SELECT m.version, m.queue FROM holdfast.machine m
    WHERE m.name = locked.machine AND (locked.version IS NULL OR m.version = locked.version)
    ORDER BY m.version DESC LIMIT 1
  ) m ON true
), tick AS MATERIALIZED (
  SELECT nextval('holdfast.instance_id_seq') AS id, t.* FROM (
    SELECT d.*, t.tick_at
    FROM unnest(${column(ticks, (row) => row.ord)}::bigint[], ${column(ticks, (row) => row.tick)}::timestamptz[]) AS t (ord, tick_at)
    JOIN declared d ON d.ord = t.ord
    WHERE d.known AND NOT EXISTS (
      SELECT FROM holdfast.schedule_run r WHERE r.project_id = d.project_id AND r.schedule = d.name AND r.tick_at = t.tick_at
    )
    ORDER BY t.tick_at, d.ord
  ) t
), inserted AS (
  INSERT INTO holdfast.instance (id, project_id, machine, version, queue, state, priority, correlation_key, concurrency_key)
  OVERRIDING SYSTEM VALUE
  SELECT id, project_id, machine, machine_version, instance_queue,
    regexp_replace(
      input::text, '(^|[^\\\\])"\\{\\{tick\\}\\}"(?!:)', '\\1"' || to_char(tick_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || '"', 'g'
    )::jsonb,
    priority, correlation_key,
    CASE overlap WHEN 'queue' THEN ':schedule:' || name ELSE concurrency_key END
  FROM tick
  ORDER BY project_id, correlation_key, tick_at
  ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
  RETURNING id
), run AS (
  INSERT INTO holdfast.schedule_run (project_id, schedule, tick_at, instance_id)
  SELECT project_id, name, tick_at, CASE WHEN id = ANY (ARRAY(SELECT id FROM inserted)) THEN id END FROM tick
  RETURNING project_id, schedule, tick_at, instance_id
), result AS MATERIALIZED (
  SELECT d.*, r.fired, r.overlapped, newest.tick_at AS last_at, newest.instance_id AS last_instance_id, greatest(d.missed_at, r.overlapped_at) AS skipped_at,
    CASE WHEN r.overlapped_at IS NULL OR d.missed_at > r.overlapped_at THEN 'missed' ELSE 'overlap' END AS skipped_why
  FROM declared d
  CROSS JOIN LATERAL (
    SELECT count(instance_id)::integer AS fired, (count(*) - count(instance_id))::integer AS overlapped,
      max(tick_at) FILTER (WHERE instance_id IS NULL) AS overlapped_at
    FROM run WHERE run.project_id = d.project_id AND run.schedule = d.name
  ) r
  LEFT JOIN LATERAL (
    SELECT tick_at, instance_id FROM run
    WHERE run.project_id = d.project_id AND run.schedule = d.name AND instance_id IS NOT NULL
    ORDER BY tick_at DESC LIMIT 1
  ) newest ON true
), moved AS (
  UPDATE holdfast.schedule s SET revision = s.revision + 1, next_at = result.next_at, due_at = result.next_at,
    last_at = coalesce(result.last_at, s.last_at), last_instance_id = coalesce(result.last_instance_id, s.last_instance_id),
    skipped_at = coalesce(result.skipped_at, s.skipped_at),
    skipped_why = CASE WHEN result.skipped_at IS NULL THEN s.skipped_why ELSE result.skipped_why END,
    failures = 0, last_error = NULL, last_error_at = NULL
  FROM result WHERE s.project_id = result.project_id AND s.name = result.name AND result.known
)
SELECT project_id, name, NOT known AS unknown_machine, fired, overlapped, CASE WHEN fired > 0 THEN instance_queue END AS queue FROM result`
  },
  {
    firings: [
      {
        projectId: '1' as ProjectId,
        name: 'nightly',
        revision: '1',
        ticks: [new Date('2030-01-01T03:00:00Z')],
        nextAt: new Date('2030-01-02T03:00:00Z'),
      },
    ],
  },
)

export interface ScheduleFailure {
  readonly projectId: ProjectId
  readonly name: string
  readonly revision: string
  readonly error: { readonly code: string; readonly message: string }
}

/**
 * Writes down why schedules could not be fired, where people see it, and puts off the next look: 10 s, doubled with each failure, at most 5 minutes. Their tick
 * stays due.
 * Locks: schedules FOR NO KEY UPDATE SKIP LOCKED, by project and name. Served by: schedule_pkey.
 */
export const recordScheduleFailures = statement<
  { failures: readonly ScheduleFailure[] },
  { project_id: ProjectId; name: string; code: string }
>(
  'schedules.record_failures',
  ({ failures }) => sql<{ project_id: ProjectId; name: string; code: string }>`
WITH failed AS MATERIALIZED (
  SELECT s.project_id, s.name, g.error FROM unnest(
    ${column(failures, (row) => row.projectId)}::bigint[],
    ${column(failures, (row) => row.name)}::text[],
    ${column(failures, (row) => row.revision)}::bigint[],
    ${column(failures, (row) => JSON.stringify(row.error))}::text[]
  ) AS g (project_id, name, revision, error)
  JOIN holdfast.schedule s ON s.project_id = g.project_id AND s.name = g.name AND s.revision = g.revision
  WHERE s.due_at <= now()
  ORDER BY s.project_id, s.name
  FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE holdfast.schedule s SET last_error = failed.error::jsonb, last_error_at = now(), failures = s.failures + 1,
  due_at = now() + least(interval '5 minutes', interval '10 seconds' * power(2, least(s.failures, 10)))
FROM failed WHERE s.project_id = failed.project_id AND s.name = failed.name
RETURNING s.project_id, s.name, s.last_error ->> 'code' AS code`,
  {
    failures: [
      {
        projectId: '1' as ProjectId,
        name: 'nightly',
        revision: '1',
        error: { code: 'unknown_machine', message: 'nobody has declared it' },
      },
    ],
  },
)

/**
 * Deletes records of ticks that were fired longer ago than the retention; answers how many. What they guard against is over within seconds of the tick.
 * Locks: schedule_run FOR UPDATE SKIP LOCKED, oldest first. Served by: schedule_run_fired_at.
 */
export const deleteOldRuns = statement<{ retentionMs: number; limit: number }, { count: number }>(
  'schedules.delete_old_runs',
  ({ retentionMs, limit }) => sql<{ count: number }>`
WITH deleted AS (
  DELETE FROM holdfast.schedule_run WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.schedule_run WHERE fired_at < now() - ${retentionMs}::bigint * interval '1 millisecond'
    ORDER BY fired_at LIMIT ${limit}::integer FOR UPDATE SKIP LOCKED
  ))
  RETURNING 1
)
SELECT count(*)::integer AS count FROM deleted`,
  { retentionMs: 604_800_000, limit: 1000 },
)
