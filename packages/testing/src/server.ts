import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { join } from 'node:path'
import type { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { createProject } from '@holdfast/queries'
import { connect, migrate, readMigrations } from '@holdfast/schema'
import pg from 'pg'
import { environmentOfKeeper, readTestDatabaseUrl } from './env.ts'

const MIGRATIONS = join(import.meta.dirname, '../../../migrations')

/** The project that a test's instances belong to. */
export const PROJECT = 'default'

export type KeeperAnswer = { readonly url: string } | { readonly error: string }

export interface EmbeddedServer {
  /** As superuser, to a maintenance database. */
  readonly url: string
  /** Ends all sessions and removes its files. */
  stop(): Promise<void>
}

/** Starts an embedded PostgreSQL that ends with this process, however this ends, and does not keep it from ending. */
export async function startEmbedded(): Promise<EmbeddedServer> {
  // The file has another ending once it is built.
  const source = import.meta.url.endsWith('.ts')
  const file = fileURLToPath(new URL(source ? './server-keeper.ts' : './server-keeper.js', import.meta.url))
  const keeper = spawn(process.execPath, [...(source ? ['--conditions=@holdfast/source'] : []), file], {
    // Ctrl-C goes to us alone; the server ends after those that use it.
    detached: true,
    stdio: ['pipe', 'pipe', 'ignore'],
    env: environmentOfKeeper(),
  })
  keeper.stdin.on('error', () => {}) // it is gone, and so is the server
  const answer = await answerOf(keeper)
  if ('error' in answer) throw new Error(`the embedded PostgreSQL for tests did not start: ${answer.error}`)
  keeper.stdout.destroy()
  ;(keeper.stdin as unknown as Socket).unref()
  keeper.unref()
  return {
    url: answer.url,
    async stop() {
      if (keeper.exitCode !== null || keeper.signalCode !== null) return
      keeper.ref()
      const exited = once(keeper, 'exit')
      keeper.stdin.end()
      await exited
    },
  }
}

function answerOf(keeper: ChildProcessByStdio<Writable, Readable, null>): Promise<KeeperAnswer> {
  return new Promise((resolve) => {
    let text = ''
    keeper.stdout.setEncoding('utf8').on('data', (more: string) => {
      text += more
      if (text.includes('\n')) resolve(JSON.parse(text) as KeeperAnswer)
    })
    keeper.once('error', (error) => resolve({ error: error.message }))
    keeper.once('exit', (code, signal) => resolve({ error: `its process ended early (${signal ?? `exit code ${code}`})` }))
  })
}

interface TestServer {
  readonly url: string
  readonly template: string
}

/** On the global object, because a process may load this module more than once (runners that isolate their files), and one server is enough. */
const SHARED = Symbol.for('holdfast.testing.server')
const shared = globalThis as { [SHARED]?: Map<string, Promise<TestServer>> }

/** The server of this process, with the template that test databases are copied from. Given no URL, neither here nor by the environment, it is embedded. */
function serverAt(given: string | undefined): Promise<TestServer> {
  const servers = (shared[SHARED] ??= new Map())
  const key = given ?? ''
  const known = servers.get(key)
  if (known !== undefined) return known
  const starting = start(given)
  servers.set(key, starting)
  starting.catch(() => servers.delete(key)) // the next one may try again
  return starting
}

async function start(given: string | undefined): Promise<TestServer> {
  const url = given ?? (await startEmbedded()).url
  if (given !== undefined) await dropAbandoned(given)
  return { url, template: await ensureTemplate(url) }
}

/** A migrated database for these migrations, made by whoever comes first: its name is the migrations' hash, so that it outlives runs and serves all of them. */
export async function ensureTemplate(url: string): Promise<string> {
  const hash = createHash('sha256')
  for (const { name, sha256 } of await readMigrations(MIGRATIONS)) hash.update(`${name} ${sha256}\n`)
  const template = `holdfast_testing_${hash.digest('hex').slice(0, 16)}`
  await withClient(url, async (client) => {
    await client.query('SELECT pg_advisory_lock(hashtextextended($1, 0))', [template]) // until the session ends
    const { rowCount } = await client.query('SELECT FROM pg_database WHERE datname = $1', [template])
    if (rowCount === 1) return
    // Under another name until it is whole, because its maker may be killed.
    const unfinished = `${template}_unfinished`
    await client.query(`DROP DATABASE IF EXISTS ${unfinished} WITH (FORCE)`)
    await client.query(`CREATE DATABASE ${unfinished}`)
    await migrate({ connectionString: at(url, unfinished), folder: MIGRATIONS })
    const db = connect({ connectionString: at(url, unfinished), max: 1 })
    await createProject(db, { name: PROJECT })
    await db.destroy()
    // Nobody may be connected to what is copied.
    await client.query(`ALTER DATABASE ${unfinished} RENAME TO ${template}`)
    await client.query(`ALTER DATABASE ${template} ALLOW_CONNECTIONS false`)
  })
  return template
}

export interface TestDatabase {
  readonly url: string
  drop(): Promise<void>
}

/** A database of one's own, copied from the template in some 20 to 50 ms. */
export async function createDatabase(given: string | undefined = readTestDatabaseUrl()): Promise<TestDatabase> {
  const { url, template } = await serverAt(given)
  const name = `${PREFIX}${Math.floor(Date.now() / 1_000)}_${randomBytes(6).toString('hex')}`
  await withClient(url, (client) => client.query(`CREATE DATABASE ${name} TEMPLATE ${template} STRATEGY file_copy`))
  return {
    url: at(url, name),
    drop: () => withClient(url, async (client) => void (await client.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`))),
  }
}

const PREFIX = 'holdfast_test_'
const ABANDONED_AFTER_S = 86_400

/** On a server that is not ours, what killed test processes have left: databases of this prefix, a day old by the time in their name, that nobody uses. */
async function dropAbandoned(url: string): Promise<void> {
  await withClient(url, async (client) => {
    const { rows } = await client.query<{ name: string }>(
      `SELECT d.datname AS name FROM pg_database d
       WHERE d.datname ~ $1 AND split_part(d.datname, '_', 3)::bigint < extract(epoch FROM now()) - $2::integer
         AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datid = d.oid)`,
      [`^${PREFIX}[0-9]{1,12}_[0-9a-f]+$`, ABANDONED_AFTER_S],
    )
    // Another process may be dropping it too.
    for (const { name } of rows) await client.query(`DROP DATABASE IF EXISTS ${name}`).catch(() => undefined)
  })
}

const at = (url: string, database: string): string => Object.assign(new URL(url), { pathname: `/${database}` }).href

async function withClient<Answer>(connectionString: string, work: (client: pg.Client) => Promise<Answer>): Promise<Answer> {
  const client = new pg.Client({ connectionString, application_name: 'holdfast-testing' })
  client.on('error', () => {}) // a connection that dies rejects its statement, which reports it
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}
