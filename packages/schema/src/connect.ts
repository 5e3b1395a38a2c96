import { createHash } from 'node:crypto'
import { type Driver, Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import type { DB } from './database.ts'

export type Db = Kysely<DB>

/** Apart from `onIdleError` plain data, so that it can be sent to a worker thread. */
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
  /** An idle connection of the pool died; it is replaced when the next one is needed. Default: a process warning. */
  readonly onIdleError?: (error: Error) => void
}

export interface PoolOptions extends ConnectOptions {
  /** Called with each text as it is sent, BEGIN and COMMIT included. For counting in tests; costs nothing where it is absent. */
  readonly onStatement?: (text: string) => void
  /** Stands between Kysely and its driver, on every connection of the pool: for tests that lose a connection on purpose. */
  readonly wrapDriver?: (driver: Driver) => Driver
}

/**
 * Settings of every session that sends the engine's statements (design/engine.md, point 2). Each hot statement is a set of point look-ups by design;
 * on small or freshly analysed tables a generic plan joins by hash over a sequential scan instead and is 5 to 60 times slower once they grow.
 */
export const engineSessionSettings: Readonly<Record<string, string>> = Object.freeze({
  enable_hashjoin: 'off',
  enable_mergejoin: 'off',
  enable_seqscan: 'off',
  // Reads a whole backlog and sorts it where the front of an index is wanted. A claim was planned so by every session that looked between the VACUUM and the
  // ANALYZE of a table that had grown (the first makes sessions plan again, the second does not), and kept it: 1,700 jobs a second instead of 14,000
  // with 100,000 waiting.
  enable_bitmapscan: 'off',
  // Caches look-ups that never repeat: each row of a batch is another.
  enable_memoize: 'off',
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

class Client extends pg.Client {
  /** The server said that it closes this connection; the socket's end may still be on its way. */
  closing = false

  override query(...args: unknown[]): never {
    const sent: unknown = super.query(...(args as [string]))
    if (sent instanceof Promise) {
      sent.catch((error: unknown) => {
        if ((error as pg.DatabaseError).severity === 'FATAL') this.closing = true
      })
    }
    return sent as never
  }
}

/** Kysely calls `client.query(text, values)`; that is the one place where a name can be added. */
class PreparingClient extends Client {
  override query(...args: unknown[]): never {
    const [text, values] = args
    const name = typeof text === 'string' && Array.isArray(values) ? statementName(text) : undefined
    if (name !== undefined) args.splice(0, 2, { name, text, values })
    return super.query(...args)
  }
}

function observed(Base: typeof Client, onStatement: (text: string) => void): typeof Client {
  return class extends Base {
    override query(...args: unknown[]): never {
      const [query] = args
      const text = typeof query === 'string' ? query : (query as { text?: string } | undefined)?.text
      if (text !== undefined) onStatement(text)
      return super.query(...args)
    }
  }
}

// Pinned per client, because pg's parsers are global: a machine's module that calls pg.types.setTypeParser for its own sake must not turn our
// bigint ids into numbers that lose digits, or our times into strings.
const INT8 = 20
const TIMESTAMPTZ = 1184
const types = new pg.TypeOverrides()
types.setTypeParser(INT8, (value) => value)
types.setTypeParser(TIMESTAMPTZ, pg.types.getTypeParser(TIMESTAMPTZ, 'text'))

function clientConfig(given: ConnectOptions): pg.ClientConfig {
  const { applicationName, preparedStatements = true } = given
  return {
    ...(preparedStatements ? withStartupOptions(given) : { connectionString: given.connectionString }),
    types,
    // A host that vanishes without a FIN would otherwise hold LISTEN connections, which only ever read, for good.
    keepAlive: true,
    connectionTimeoutMillis: 10_000,
    ...(applicationName === undefined ? {} : { application_name: applicationName }),
  }
}

function withStartupOptions({ connectionString, role, settings }: ConnectOptions): pg.ClientConfig {
  const all = Object.entries({ ...settings, ...(role ? { role } : {}) })
  if (all.length === 0) return { connectionString }
  // They are split at blanks, and a backslash escapes one.
  const options = all.map(([name, value]) => `-c ${name}=${value.replaceAll(/([\\\s])/g, '\\$1')}`).join(' ')
  if (!/[?&]options=/.test(connectionString)) return { connectionString, options }
  // pg lets `?options=` of the URL replace the field, and with it the role; so the URL's go in front of ours.
  const url = new URL(connectionString)
  const theirs = url.searchParams.getAll('options').join(' ')
  url.searchParams.delete('options')
  return { connectionString: url.href, options: `${theirs} ${options}` }
}

const clientClass = ({ preparedStatements = true }: ConnectOptions): typeof Client => (preparedStatements ? PreparingClient : Client)

const warn = (error: Error): void => process.emitWarning(`an idle database connection was lost: ${error.message}`)

const pools = new WeakMap<object, pg.Pool>()

/** A pool of connections behind Kysely's `pg` dialect; opens none before the first statement. `destroy()` closes them. */
export function connect(options: PoolOptions): Db {
  const { max = 10, onIdleError = warn, onStatement, wrapDriver } = options
  const Base = clientClass(options)
  const pool = new pg.Pool({ ...clientConfig(options), max, Client: onStatement === undefined ? Base : observed(Base, onStatement) })
  // Without a listener an idle connection that dies ends the process. `end()` does not wait until its connections are closed, so one that the
  // server ends first still gets here.
  pool.on('error', (error) => {
    if (!pool.ending) onIdleError(error)
  })
  // A connection that dies in use rejects its query, which reports it, and then says so once more as an event, which without a listener
  // would end the process.
  pool.on('connect', (client) => client.on('error', () => {}))
  // The pool takes back a connection whose end it has not yet seen, and hands it to the next caller, who then fails too. One that is ending it drops.
  pool.on('release', (_error, client) => {
    if ((client as unknown as Client).closing) void client.end().catch(() => undefined) // it is closed already
  })
  const postgres = new PostgresDialect({ pool })
  const dialect =
    wrapDriver === undefined
      ? postgres
      : {
          createDriver: () => wrapDriver(postgres.createDriver()),
          createAdapter: () => postgres.createAdapter(),
          createQueryCompiler: () => postgres.createQueryCompiler(),
          createIntrospector: (db: Kysely<unknown>) => postgres.createIntrospector(db),
        }
  const db = new Kysely<DB>({ dialect })
  pools.set(db, pool)
  return db
}

/**
 * One connection outside any pool: for LISTEN, which belongs to a session, and for the heartbeat thread. Its user listens for `error` and `end`;
 * `max` and `onIdleError` mean nothing here.
 */
export async function connectOne(options: ConnectOptions): Promise<pg.Client> {
  const client = new (clientClass(options))(clientConfig(options))
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

/** How the pool of a `Db` from `connect()` stands at this moment; a transaction has no pool of its own and is refused. */
export function poolStats(db: Db): PoolStats {
  const pool = pools.get(db)
  if (pool === undefined) throw new TypeError('poolStats takes a Db that connect() made, not a transaction or another Kysely')
  return { total: pool.totalCount, idle: pool.idleCount, waiting: pool.waitingCount }
}
