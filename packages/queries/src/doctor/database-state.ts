import { sql } from 'kysely'
import { statement } from '../statement.ts'

// What `holdfast doctor` asks of the catalogs. A person waits for each of these; none is on a timer, none takes a lock that anybody waits for.

export interface DatabaseStateRow {
  readonly server: string
  readonly database: string
  readonly login: string
  /** Whether the migrator has ever been here. */
  readonly migrated: boolean
  /** Whether other roles' sessions and settings can be seen, as a superuser or a member of pg_monitor does. */
  readonly may_monitor: boolean
  /** A standby: its statistics are its own, and nothing can be mended there. */
  readonly standby: boolean
}

/** From the catalog and not by to_regclass(), which refuses who may not enter the schema. */
export const getDatabaseState = statement<Record<never, never>, DatabaseStateRow>(
  'doctor.database_state',
  () => sql<DatabaseStateRow>`
SELECT current_setting('server_version') AS server, current_database()::text AS database, current_user::text AS login,
  EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'holdfast' AND c.relname = 'schema_migration'
  ) AS migrated, pg_has_role('pg_monitor', 'USAGE') AS may_monitor,
  pg_is_in_recovery() AS standby`,
  {},
)

export interface MigrationRow {
  readonly version: number
  readonly name: string
  readonly sha256: string
  readonly compatibility: 'safe' | 'breaking'
}

export const listMigrations = statement<Record<never, never>, MigrationRow>(
  'doctor.list_migrations',
  () => sql<MigrationRow>`SELECT version, name, sha256, compatibility FROM holdfast.schema_migration ORDER BY version`,
  {},
)

export interface ConnectionUseRow {
  readonly used: number
  /** What is left for logins that are no superusers: max_connections less what is reserved. */
  readonly available: number
  /** Sum of the pools of all registered processes. */
  readonly pool_max: number
  readonly processes: number
}

/** `numbackends` and not pg_stat_activity, whose rows of others say nothing to who is no member of pg_monitor. */
export const getConnectionUse = statement<Record<never, never>, ConnectionUseRow>(
  'doctor.connection_use',
  () => sql<ConnectionUseRow>`
SELECT (SELECT coalesce(sum(numbackends), 0)::integer FROM pg_stat_database) AS used,
  current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true)::integer, 0) AS available,
  (SELECT coalesce(sum(pool_max), 0)::integer FROM holdfast.process) AS pool_max,
  (SELECT count(*)::integer FROM holdfast.process) AS processes`,
  {},
)

export interface SettingRow {
  readonly name: string
  readonly value: string
  /** Whose sessions have it: `server`, or a database role or database that overrides it. */
  readonly scope: string
}

/**
 * Settings that decide whether a commit is durable, whether dead rows are removed, and at which isolation we write: as the server has them, and as
 * they are overridden for this database or for a role of ours.
 */
export const listSettings = statement<Record<never, never>, SettingRow>(
  'doctor.list_settings',
  () => sql<SettingRow>`
WITH watched AS (
  SELECT unnest(ARRAY['fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'default_transaction_isolation']) AS name
)
SELECT w.name, s.setting AS value, 'server' AS scope FROM watched w JOIN pg_settings s ON s.name = w.name
UNION ALL
SELECT w.name, split_part(c.entry, '=', 2), coalesce(r.rolname, 'database ' || current_database())::text
FROM pg_db_role_setting o CROSS JOIN LATERAL unnest(o.setconfig) AS c (entry)
JOIN watched w ON w.name = split_part(c.entry, '=', 1)
LEFT JOIN pg_roles r ON r.oid = o.setrole
WHERE (o.setdatabase = 0 OR o.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND (o.setrole = 0 OR r.rolname LIKE 'holdfast%')
ORDER BY 1, 3`,
  {},
)
