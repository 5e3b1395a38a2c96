import type { InstanceId, JsonValue } from '@holdfast/contracts'
import { sql } from 'kysely'

export interface ScheduleRow {
  readonly name: string
  readonly cron: string
  readonly timezone: string
  readonly machine: string
  readonly version: number | null
  readonly input: JsonValue
  readonly queue: string | null
  readonly priority: number
  readonly concurrency_key: string | null
  readonly catch_up: 'none' | 'one' | 'all'
  readonly overlap: 'allow' | 'skip' | 'queue'
  /** null while paused. */
  readonly next_at: Date | null
  readonly last_at: Date | null
  readonly last_instance_id: InstanceId | null
  readonly skipped_at: Date | null
  readonly skipped_why: 'missed' | 'overlap' | null
  readonly paused_at: Date | null
  readonly last_error: { readonly code: string; readonly message: string } | null
  readonly last_error_at: Date | null
  readonly created_at: Date
  readonly updated_at: Date
}

/** The columns of {@link ScheduleRow}, of the table under the name `s`. */
export const scheduleColumns =
  sql.raw(`s.name, s.cron, s.timezone, s.machine, s.version, s.input, s.queue, s.priority, s.concurrency_key, s.catch_up, s.overlap,
  s.next_at, s.last_at, s.last_instance_id, s.skipped_at, s.skipped_why, s.paused_at, s.last_error, s.last_error_at, s.created_at, s.updated_at`)
