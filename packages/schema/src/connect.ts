import { createHash } from 'node:crypto'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import type { DB } from './database.ts'

export type Db = Kysely<DB>

export interface ConnectOptions {
  readonly connectionString: string
  readonly max?: number
  readonly applicationName?: string
  /** Off for proxies in transaction mode that do not know prepared statements. */
  readonly preparedStatements?: boolean
}

// A text that starts with `/* engine.claim */` is prepared as `engine.claim.<hash>`; one without such a head is not.
const names = new Map<string, string | undefined>()
function statementName(text: string): string | undefined {
  if (names.has(text)) return names.get(text)
  const label = /^\s*\/\* ([a-z0-9._-]{1,40}) \*\//.exec(text)?.[1]
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

export function connect({ connectionString, max = 10, applicationName, preparedStatements = true }: ConnectOptions): Db {
  const pool = new pg.Pool({
    connectionString,
    max,
    ...(applicationName === undefined ? {} : { application_name: applicationName }),
    ...(preparedStatements ? { Client: PreparingClient } : {}),
  })
  pool.on('error', () => {}) // an idle connection that dies is replaced; without a listener it ends the process
  return new Kysely<DB>({ dialect: new PostgresDialect({ pool }) })
}

export async function connectOne({ connectionString, applicationName }: ConnectOptions): Promise<pg.Client> {
  const client = new pg.Client({ connectionString, application_name: applicationName ?? 'holdfast', keepAlive: true })
  await client.connect()
  return client
}
