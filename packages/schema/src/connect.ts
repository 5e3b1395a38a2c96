import { createHash } from 'node:crypto'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import type { DB } from './database.ts'

export type Db = Kysely<DB>

export interface ConnectOptions {
  readonly connectionString: string
  /** Most connections of the pool. Default 10. */
  readonly max?: number
  readonly applicationName?: string
  /**
   * Default true. Off for proxies in transaction mode that do not know prepared statements; then startup options are not sent either, which such
   * proxies refuse: the URL logs in as the role itself, whose ALTER ROLE … SET carries the same settings.
   */
  readonly preparedStatements?: boolean
  /** Database role to act as; the login must be a member of it. Sent as a startup option, so it costs no statement. */
  readonly role?: string | undefined
  /** Session settings, sent as startup options. */
  readonly settings?: Readonly<Record<string, string>>
  /** An idle connection of the pool died; it is replaced when the next one is needed. */
  readonly onIdleError?: (error: Error) => void
}

/**
 * Settings of every session that sends the engine's statements. Each hot statement is a set of point look-ups by design; on small or freshly
 * analysed tables a generic plan joins by hash over a sequential scan instead and is 5 to 60 times slower once they grow.
 */
export const engineSessionSettings: Readonly<Record<string, string>> = Object.freeze({
  enable_hashjoin: 'off',
  enable_mergejoin: 'off',
  enable_seqscan: 'off',
  plan_cache_mode: 'force_generic_plan',
  jit: 'off',
})

// A text that starts with `/* engine.claim */` is prepared as `engine.claim.<hash>`; one without such a head is not. The hash is there because
// a name must stand for one text, also while two versions of us share a proxied connection.
const names = new Map<string, string>()
function statementName(text: string): string | undefined {
  const known = names.get(text)
  if (known !== undefined) return known
  const label = /^\/\* ([a-z0-9._-]{1,40}) \*\//.exec(text)?.[1]
  if (label === undefined) return undefined // dynamic texts must not fill the map
  const name = `${label}.${createHash('sha256').update(text).digest('hex').slice(0, 16)}`
  names.set(text, name)
  return name
}

/** Kysely calls `client.query(text, values)`; that is the one place where a name can be added. */
class PreparingClient extends pg.Client {
  override query(...args: unknown[]): never {
    const [text, values] = args
    const name = typeof text === 'string' && Array.isArray(values) ? statementName(text) : undefined
    if (name !== undefined) args.splice(0, 2, { name, text, values })
    return super.query(...(args as [string])) as never
  }
}

function clientConfig({ connectionString, applicationName, role, settings, preparedStatements = true }: ConnectOptions): pg.ClientConfig {
  const all = { ...settings, ...(role ? { role } : {}) }
  // Startup options are split at blanks, and a backslash escapes one.
  const options = Object.entries(all).map(([name, value]) => `-c ${name}=${value.replaceAll(/([\\ ])/g, '\\$1')}`)
  return {
    connectionString,
    keepAlive: true,
    connectionTimeoutMillis: 10_000,
    ...(applicationName === undefined ? {} : { application_name: applicationName }),
    ...(preparedStatements && options.length > 0 ? { options: options.join(' ') } : {}),
  }
}

const pools = new WeakMap<object, pg.Pool>()

export function connect(options: ConnectOptions): Db {
  const pool = new pg.Pool({
    ...clientConfig(options),
    max: options.max ?? 10,
    ...((options.preparedStatements ?? true) ? { Client: PreparingClient } : {}),
  })
  // Without a listener an idle connection that dies ends the process.
  pool.on('error', (error) => options.onIdleError?.(error))
  // A connection that dies in use rejects its query, and then says so once more as an event, which without a listener would end the process.
  pool.on('connect', (client) => client.on('error', () => {}))
  const db = new Kysely<DB>({ dialect: new PostgresDialect({ pool }) })
  pools.set(db, pool)
  return db
}

/** One connection outside any pool: for LISTEN, which belongs to a session. */
export async function connectOne(options: ConnectOptions): Promise<pg.Client> {
  const client = new pg.Client(clientConfig(options))
  client.on('error', () => {}) // until its user listens; a rejected connect() is what reports the failure
  await client.connect()
  return client
}

export interface PoolStats {
  readonly total: number
  readonly idle: number
  /** Callers that wait for a connection. */
  readonly waiting: number
}
export function poolStats(db: Db): PoolStats {
  const pool = pools.get(db)
  return { total: pool?.totalCount ?? 0, idle: pool?.idleCount ?? 0, waiting: pool?.waitingCount ?? 0 }
}
