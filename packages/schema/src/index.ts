export { type ConnectOptions, connect, connectOne, type Db } from './connect.ts'
export type { DB as Database } from './database.ts'
export { migrate } from './migrate.ts'
