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
export { type MigrateOptions, type MigrationReport, migrate } from './migrate.ts'
export { expectedVersion, MigrationRefusedError } from './migration-files.ts'
export { DatabaseRoles, type Role } from './roles.ts'
