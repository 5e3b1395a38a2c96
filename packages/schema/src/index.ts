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
export { MigrationRefusedError, type MigrateOptions, type MigrationReport, migrate, expectedVersion } from './migrate.ts'
export { DatabaseRoles, type Role } from './roles.ts'
