import type { ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'
import type { ScheduleRow } from './schedule-row.ts'

export interface DueSchedule extends Pick<ScheduleRow, 'name' | 'cron' | 'timezone' | 'catch_up'> {
  readonly project_id: ProjectId
  readonly revision: string
  readonly next_at: Date
}
interface NoneDue {
  readonly name: null
}
export type DueScheduleRow = (DueSchedule | NoneDue) & {
  readonly now: Date
  /** Milliseconds until another one is due; null when none waits. */
  readonly next_in_ms: number | null
}

/**
 * Schedules that are due, longest first, and the clock to compute their ticks by; one row without a name when none is. Those of a suspended project rest.
 * It locks nothing, because a lock would have to be held while a library computes: whoever reads the same rows computes the same, and the firing decides
 * (see fire-ticks).
 * Served by: schedule_due, project_pkey.
 */
export const findDueSchedules = statement<{ limit: number }, DueScheduleRow>(
  'schedules.find_due',
  ({ limit }) => sql<DueScheduleRow>`
SELECT clock.now, clock.next_in_ms, due.project_id, due.name, due.revision, due.cron, due.timezone, due.catch_up, due.next_at
FROM (
  SELECT now() AS now, (SELECT ceil(extract(epoch FROM due_at - now()) * 1000)::float8 FROM holdfast.schedule
    WHERE due_at > now() ORDER BY due_at LIMIT 1) AS next_in_ms
) clock
LEFT JOIN LATERAL (
  SELECT s.project_id, s.name, s.revision, s.cron, s.timezone, s.catch_up, s.next_at, s.due_at
  FROM holdfast.schedule s JOIN holdfast.project p ON p.id = s.project_id
  WHERE s.due_at <= now() AND p.suspended_at IS NULL
  ORDER BY s.due_at LIMIT ${limit}::integer
) due ON true
ORDER BY due.due_at`,
  { limit: 50 },
)
