// What the benchmark of blocking asks of the engine's tables, in one place: plain SQL, so that it says what is there and not what our own statements make of it.
import type { ProjectId } from '@holdfast/contracts'
import type { Client } from './bench-server.ts'
import type { UnderLimit } from './systems/holdfast.ts'

/** Before everything else in its queue. */
const URGENT = -100
const HELD_GATE = 'held'
const HELD_GATE_CAPACITY = 4
const HELD_KEY = 'account-1'
const EMPTY_RATE = 'empty'

const gate = async (client: Client, projectId: ProjectId, name: string, capacity: number): Promise<void> => {
  await client.query(`INSERT INTO holdfast.limit_policy (project_id, kind, name, capacity) VALUES ($1, 'gate', $2, $3)`, [
    projectId,
    name,
    capacity,
  ])
}
const rate = async (
  client: Client,
  projectId: ProjectId,
  name: string,
  { tokens, periodMs, burst, shards }: { tokens: number; periodMs: number; burst: number; shards: number },
): Promise<void> => {
  await client.query(
    `INSERT INTO holdfast.limit_policy (project_id, kind, name, rate, period_ms, burst, shards) VALUES ($1, 'rate', $2, $3, $4, $5, $6)`,
    [projectId, name, tokens, periodMs, burst, shards],
  )
}

/** One that executes for longer than the benchmark takes, claimed by nobody who is here. */
const holder = async (client: Client, projectId: ProjectId, key: string, slot: number | null): Promise<string> => {
  const { rows } = await client.query<{ id: string }>(
    `INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, claimed_by, lease_expires_at, concurrency_key, gate_slot)
    VALUES ($1, 'elsewhere', 'executing', 1, 'elsewhere', now() + interval '1 day', $2, $3) RETURNING id`,
    [projectId, key, slot],
  )
  return rows[0]?.id ?? ''
}

/** Rows that stand before the jobs whose start is timed. */
export interface Ahead {
  readonly name: string
  /** Whether they are inserted as runnable, so that the engine has to find out that they cannot run. */
  readonly runnable: boolean
  prepare(client: Client, projectId: ProjectId): Promise<void>
  insert(client: Client, projectId: ProjectId, count: number): Promise<void>
}

const runnable = async (client: Client, projectId: ProjectId, count: number, column: string, key: string): Promise<void> => {
  await client.query(
    `INSERT INTO holdfast.instance (project_id, machine, priority, ${column}) SELECT $1, 'noop', ${URGENT}, $2 FROM generate_series(1, $3::integer)`,
    [projectId, key, count],
  )
}

export const AHEAD: readonly Ahead[] = [
  {
    name: 'denied by a gate',
    runnable: true,
    async prepare(client, projectId) {
      await gate(client, projectId, HELD_GATE, HELD_GATE_CAPACITY)
      for (let slot = 0; slot < HELD_GATE_CAPACITY; slot += 1) {
        const id = await holder(client, projectId, HELD_GATE, slot)
        await client.query('INSERT INTO holdfast.gate_slot (project_id, key, slot, holder_id, holder_epoch) VALUES ($1, $2, $3, $4, 1)', [
          projectId,
          HELD_GATE,
          slot,
          id,
        ])
      }
    },
    insert: (client, projectId, count) => runnable(client, projectId, count, 'concurrency_key', HELD_GATE),
  },
  {
    name: 'denied by a rate limit',
    runnable: true,
    async prepare(client, projectId) {
      // One an hour, and that of this hour is gone.
      await rate(client, projectId, EMPTY_RATE, { tokens: 1, periodMs: 3_600_000, burst: 1, shards: 1 })
      await client.query(
        `INSERT INTO holdfast.rate_bucket (project_id, key, shard, revision, tokens, capacity) VALUES ($1, $2, 0, 1, 0, 1000000)`,
        [projectId, EMPTY_RATE],
      )
    },
    insert: (client, projectId, count) => runnable(client, projectId, count, 'rate_key', EMPTY_RATE),
  },
  {
    name: 'blocked by a serial key',
    runnable: true,
    async prepare(client, projectId) {
      await holder(client, projectId, HELD_KEY, null)
    },
    insert: (client, projectId, count) => runnable(client, projectId, count, 'concurrency_key', HELD_KEY),
  },
  {
    name: 'due in a year',
    runnable: false,
    async prepare() {},
    async insert(client, projectId, count) {
      await client.query(
        `INSERT INTO holdfast.instance (project_id, machine, priority, status, eligible_at)
        SELECT $1, 'noop', ${URGENT}, 'scheduled', now() + interval '1 year' + n * interval '1 second' FROM generate_series(1, $2::integer) n`,
        [projectId, count],
      )
    },
  },
]

/** Everything urgent has been parked: the engine has found out. */
export const PARKED = `SELECT NOT EXISTS (SELECT FROM holdfast.instance WHERE status = 'runnable' AND queue = 'default' AND priority = ${URGENT}) AS ok`

const SERIAL_JOBS = 10
export const UNLIMITED = 'unlimited'

/** The same jobs under limits that let all of them through: what the limit itself costs. `jobs` is how many there will be. */
export const underLimits = (jobs: number): Readonly<Record<string, UnderLimit>> => ({
  [UNLIMITED]: { fields: () => ({}) },
  ...Object.fromEntries(
    [100, 1_000, 5_000].map((capacity) => [
      `gate of ${capacity}`,
      {
        declare: (client: Client, projectId: ProjectId) => gate(client, projectId, 'jobs', capacity),
        fields: () => ({ concurrencyKey: 'jobs' }),
      },
    ]),
  ),
  // Neighbours: a claim finds ten of a key side by side, takes one and parks nine.
  [`serial keys, ${SERIAL_JOBS} in a row`]: { fields: (n) => ({ concurrencyKey: `row-${Math.floor(n / SERIAL_JOBS)}` }) },
  // Spread: by the time the second of a key comes to the front, the first has ended.
  [`serial keys, ${SERIAL_JOBS} spread`]: { fields: (n) => ({ concurrencyKey: `spread-${n % Math.ceil(jobs / SERIAL_JOBS)}` }) },
  ...Object.fromEntries(
    [1, 8].map((shards) => [
      `rate limit, ${shards === 1 ? '1 shard' : `${shards} shards`}`,
      {
        // A thousand times what is there: it is asked, and never says no.
        declare: (client: Client, projectId: ProjectId) =>
          rate(client, projectId, 'jobs', { tokens: 1_000_000, periodMs: 1_000, burst: 100_000_000, shards }),
        fields: () => ({ rateKey: 'jobs' }),
      },
    ]),
  ),
})
