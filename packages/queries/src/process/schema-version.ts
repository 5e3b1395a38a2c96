import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface SchemaVersionRow {
  readonly version: number
  /** Whether every migration after `known` lets older processes go on. */
  readonly newer_are_safe: boolean
}

/** The newest migration of the database, and whether code that knows `known` may run on it. */
export const getSchemaVersion = statement<{ known: number }, SchemaVersionRow>(
  'process.schema_version',
  ({ known }) => sql<SchemaVersionRow>`
SELECT coalesce(max(version), 0) AS version,
  coalesce(bool_and(compatibility = 'safe') FILTER (WHERE version > ${known}::integer), true) AS newer_are_safe
FROM holdfast.schema_migration`,
  { known: 1 },
)
