// What every figure is measured with: a fresh database for each, counters of WAL and transactions, one server with durable settings.
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Postgres, startPostgres } from '@holdfast/testbed/postgres'
import pg from 'pg'

export interface Figure {
  readonly figure: 'drain' | 'steps3' | 'enqueue' | 'idle_p50' | 'idle_p99' | 'wal_per_job' | 'tx_per_job'
  readonly system: string
  readonly value: number
  readonly unit: string
  readonly settings: string
}

/** A durable server of its own, with the settings of the peers' measurements: fsync on, 1 GB of shared buffers. */
export class BenchServer implements AsyncDisposable {
  readonly #folder: string
  readonly #postgres: Postgres
  private constructor(folder: string, postgres: Postgres) {
    this.#folder = folder
    this.#postgres = postgres
  }
  static async start(): Promise<BenchServer> {
    const folder = await mkdtemp(join(tmpdir(), 'holdfast-bench-'))
    await chmod(folder, 0o755)
    const postgres = await startPostgres({
      dataDir: join(folder, 'data'),
      volatile: false,
      settings: { shared_buffers: '1GB', synchronous_commit: 'on', fsync: 'on' },
    })
    return new BenchServer(folder, postgres)
  }
  url(database: string): string {
    return this.#postgres.url(database)
  }
  /** An empty database, and a checkpoint, so that no trial pays for another's pages. */
  async fresh(name: string): Promise<string> {
    await this.admin(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
    await this.admin(`CREATE DATABASE ${name}`)
    await this.admin('CHECKPOINT')
    return this.url(name)
  }
  async admin(text: string): Promise<void> {
    const client = new pg.Client({ connectionString: this.url('postgres') })
    await client.connect()
    try {
      await client.query(text)
    } finally {
      await client.end()
    }
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#postgres.stop()
    await rm(this.#folder, { recursive: true, force: true })
  }
}

export async function open(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  return client
}

export interface Counters {
  readonly walBytes: number
  readonly transactions: number
}

export async function counters(client: pg.Client): Promise<Counters> {
  // A backend reports its statistics at most once a second.
  await client.query('SELECT pg_stat_force_next_flush()')
  const { rows } = await client.query<{ wal: string; tx: string }>(`
    SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal,
      (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()) AS tx`)
  return { walBytes: Number(rows[0]?.wal), transactions: Number(rows[0]?.tx) }
}

/** Waits until `text` answers true, looking every 25 ms (more often would cost what is being measured): the end of a drain as the database shows it. */
export async function until(client: pg.Client, text: string, values: unknown[] = []): Promise<void> {
  for (;;) {
    const { rows } = await client.query<{ ok: boolean }>({ text, values, rowMode: undefined } as never)
    if (rows[0]?.ok === true) return
    await sleep(25)
  }
}

export function percentile(samples: readonly number[], share: number): number {
  const sorted = [...samples].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN
}
export const median = (samples: readonly number[]): number => percentile(samples, 0.5)
