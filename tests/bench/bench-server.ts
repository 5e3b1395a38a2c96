// What every figure is measured on: one durable server for all systems of a run, and an empty database for each trial.
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Postgres, startPostgres } from '@holdfast/testbed/postgres'
import pg from 'pg'

/** Everything else is PostgreSQL's default: `wal_level=replica`, `full_page_writes=on`, autovacuum on. */
export const SERVER_SETTINGS: Readonly<Record<string, string>> = { shared_buffers: '1GB', synchronous_commit: 'on', fsync: 'on' }

/** By the clock that all processes of a machine share, in milliseconds; `performance.now()` counts from the start of its own process. */
export const nowMs = (): number => Number(process.hrtime.bigint()) / 1e6

export class BenchServer implements AsyncDisposable {
  readonly #folder: string
  readonly #postgres: Postgres
  #databases = 0
  private constructor(folder: string, postgres: Postgres) {
    this.#folder = folder
    this.#postgres = postgres
  }

  /** `settings` on top of {@link SERVER_SETTINGS}; smoke tests ask for less memory. */
  static async start(settings: Readonly<Record<string, string>> = {}): Promise<BenchServer> {
    const folder = await mkdtemp(join(tmpdir(), 'holdfast-bench-'))
    try {
      await chmod(folder, 0o755) // PostgreSQL runs as nobody where we are root
      const postgres = await startPostgres({
        dataDir: join(folder, 'data'),
        volatile: false,
        settings: { ...SERVER_SETTINGS, ...settings },
      })
      return new BenchServer(folder, postgres)
    } catch (error) {
      await rm(folder, { recursive: true, force: true })
      throw error
    }
  }

  /** A signal ends the server and removes its files, and then this process; workers end when it is gone. */
  stopOnSignals(): this {
    for (const [signal, code] of [
      ['SIGHUP', 129],
      ['SIGINT', 130],
      ['SIGTERM', 143],
    ] as const) {
      process.once(signal, () => {
        // Whatever is being measured loses its connections now, and that is not worth a word.
        process.on('uncaughtException', () => {})
        process.on('unhandledRejection', () => {})
        void this[Symbol.asyncDispose]().finally(() => process.exit(code))
      })
    }
    return this
  }

  /** Of the postmaster. */
  get pid(): number {
    return this.#postgres.pid
  }

  /** An empty database and a checkpoint, so that no trial pays for another's pages; dropped afterwards, so that autovacuum has nothing else to do. */
  async database(): Promise<BenchDatabase> {
    this.#databases += 1
    const name = `bench_${this.#databases}`
    await this.#admin(`CREATE DATABASE ${name}`)
    await this.#admin('CHECKPOINT')
    return {
      url: this.#postgres.url(name),
      [Symbol.asyncDispose]: () => this.#drop(name),
    }
  }

  /** Some libraries say that they are closed before their connections are, and a connection that is cut would end this process. */
  async #drop(name: string): Promise<void> {
    await using client = await open(this.#postgres.url('postgres'))
    await until(
      client,
      `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = '${name}' AND backend_type = 'client backend') AS ok`,
      {
        everyMs: 20,
        limitMs: 5_000,
      },
    )
    await client.query(`DROP DATABASE ${name} WITH (FORCE)`)
  }

  async version(): Promise<string> {
    await using client = await open(this.#postgres.url('postgres'))
    const { rows } = await client.query<{ server_version: string }>('SHOW server_version')
    return rows[0]?.server_version ?? '?'
  }

  async #admin(text: string): Promise<void> {
    await using client = await open(this.#postgres.url('postgres'))
    await client.query(text)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#postgres.stop()
    await rm(this.#folder, { recursive: true, force: true })
  }
}

export interface BenchDatabase extends AsyncDisposable {
  readonly url: string
}

export type Client = pg.Client & AsyncDisposable

/** One connection; closed when it is disposed of. */
export async function open(url: string): Promise<Client> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
}

/** Bytes of WAL written since the beginning, by the whole server; nothing but the trial writes meanwhile. */
export async function walBytes(client: Client): Promise<number> {
  const { rows } = await client.query<{ wal: string }>(`SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal`)
  return Number(rows[0]?.wal)
}

/** Transactions of the database, reads included. A backend reports them when it ends, and else about once a second. */
export async function transactions(client: Client): Promise<number> {
  await client.query('SELECT pg_stat_force_next_flush()')
  const { rows } = await client.query<{ tx: string }>(
    'SELECT xact_commit + xact_rollback AS tx FROM pg_stat_database WHERE datname = current_database()',
  )
  return Number(rows[0]?.tx)
}

/** Waits until `text` answers true in its column `ok`; answers false when `limitMs` are over first. */
export async function until(client: Client, text: string, { everyMs = 2, limitMs = 600_000 } = {}): Promise<boolean> {
  const giveUpAtMs = performance.now() + limitMs
  for (;;) {
    const { rows } = await client.query<{ ok: boolean }>(text)
    if (rows[0]?.ok === true) return true
    if (performance.now() > giveUpAtMs) return false
    await sleep(everyMs)
  }
}
