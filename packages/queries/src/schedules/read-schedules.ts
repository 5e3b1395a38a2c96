import type { ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'
import { type ScheduleRow, scheduleColumns } from './schedule-row.ts'

/** Served by: schedule_pkey. */
export const getSchedule = statement<{ projectId: ProjectId; name: string }, ScheduleRow>(
  'schedules.get',
  ({ projectId, name }) => sql<ScheduleRow>`
SELECT ${scheduleColumns} FROM holdfast.schedule s WHERE s.project_id = ${projectId}::bigint AND s.name = ${name}::text`,
  { projectId: '1' as ProjectId, name: 'nightly' },
)

/** A page, by name. Served by: schedule_pkey. */
export const listSchedules = statement<{ projectId: ProjectId; after?: string | undefined; limit: number }, ScheduleRow>(
  'schedules.list',
  ({ projectId, after, limit }) => sql<ScheduleRow>`
SELECT ${scheduleColumns} FROM holdfast.schedule s
WHERE s.project_id = ${projectId}::bigint AND s.name > ${after ?? ''}::text
ORDER BY s.name LIMIT ${limit}::integer`,
  { projectId: '1' as ProjectId, limit: 100 },
)
