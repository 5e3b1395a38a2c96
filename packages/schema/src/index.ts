export {
  type ConnectOptions,
  connect,
  connectOne,
  type Db,
  engineSessionSettings,
  type PoolOptions,
  type PoolStats,
  poolStats,
} from './connect.ts'
export { Constraints } from './constraints.ts'
export type { DB as Database } from './database.ts'
export { type MigrateOptions, type MigrationReport, migrate, pendingMigrations } from './migrate.ts'
export { expectedVersion, type MigrationFile, MigrationRefusedError, readMigrations } from './migration-files.ts'
export { Apps, DatabaseRoles, type Role } from './roles.ts'
