import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { HoldfastApiError, HoldfastClient } from '@holdfast/client'
import { checkInvariants, type Violation } from '@holdfast/invariants'
import { createProject, findProject, hashToken, issueToken, newToken } from '@holdfast/queries'
import { connect, Apps, type Db, migrate, type Role } from '@holdfast/schema'
import { freePort, type Postgres, startPostgres } from '@holdfast/testbed/postgres'
import { RoleProcess } from '@holdfast/testbed/role-process'
import { sql } from 'kysely'

export interface ChaosOptions {
  readonly instances: number
  /** Pause between two kills. Default 1.2 s: about what a role needs to be up again. */
  readonly killEveryMs?: number
  /** Give up when not everything has ended so long after the last payment. Default 120 s. */
  readonly settleMs?: number
  readonly onProgress?: (line: string) => void
}

export interface ChaosReport {
  readonly instances: number
  readonly done: number
  readonly otherwise: Readonly<Record<string, number>>
  /** Instances with more or fewer than one ending in their history. */
  readonly notEndedOnce: number
  /** Effects by idempotency key; each instance has exactly one. */
  readonly effects: number
  /** Runs of the effect that were repeated because a process died in between. */
  readonly repeatedTries: number
  readonly leftOutcomes: number
  readonly leftSignals: number
  readonly quarantined: number
  readonly violations: readonly Violation[]
  readonly kills: Readonly<Record<string, number>>
  readonly seconds: number
}

const ROLES: readonly Role[] = Apps
const ROOT = join(import.meta.dirname, '../..')
/** Every so many payments is sent twice. */
const TWICE = 10

/**
 * Drives checkouts through the six real processes on a real server, payments arriving as signals, while each role and once the server itself is killed
 * with SIGKILL in turn; then says what became of every single one.
 */
export async function runChaos({
  instances,
  killEveryMs = 1_200,
  settleMs = 120_000,
  onProgress = () => {},
}: ChaosOptions): Promise<ChaosReport> {
  const startedMs = performance.now()
  await using system = await System.start(onProgress)
  const orders = Array.from({ length: instances }, (_, index) => index + 1)
  // The work is spread over one round of kills, so that every kill meets some of it.
  const spreadMs = Math.max(killEveryMs * (ROLES.length + 1), 1)
  const killing = new Killing(system, killEveryMs, onProgress)
  const killer = killing.run()
  await enqueueAll(system.client, orders, spreadMs / 2)
  onProgress(`${instances} checkouts are in`)
  await payAll(system.client, orders, spreadMs)
  onProgress('every payment is sent')
  await killing.roundDone
  await untilEnded(system.db, instances, settleMs, onProgress)
  killing.stop()
  await killer
  await sleep(1_500) // the last flushes and hints; what is stuck stays stuck
  const report = await inspect(system.db, instances)
  return { ...report, kills: killing.kills, seconds: Math.round((performance.now() - startedMs) / 100) / 10 }
}

class System implements AsyncDisposable {
  readonly db: Db
  readonly client: HoldfastClient
  readonly #folder: string
  readonly #roles = new Map<Role, RoleProcess>()
  readonly #env: Record<string, string | undefined>
  readonly #onProgress: (line: string) => void
  #postgres: Postgres

  private constructor(
    folder: string,
    postgres: Postgres,
    db: Db,
    client: HoldfastClient,
    env: Record<string, string | undefined>,
    onProgress: (line: string) => void,
  ) {
    this.#folder = folder
    this.#postgres = postgres
    this.db = db
    this.client = client
    this.#env = env
    this.#onProgress = onProgress
  }

  static async start(onProgress: (line: string) => void): Promise<System> {
    const folder = await mkdtemp(join(tmpdir(), 'holdfast-chaos-'))
    await chmod(folder, 0o755) // the server's account has to walk through it
    // Durable: a server that is killed must come back with everything it has acknowledged.
    const postgres = await startPostgres({ dataDir: join(folder, 'data'), volatile: false })
    const url = postgres.url('postgres')
    await migrate({ connectionString: url, folder: join(ROOT, 'migrations') })
    const db = connect({ connectionString: url, max: 4 })
    await sql`CREATE SCHEMA chaos`.execute(db)
    await sql`CREATE TABLE chaos.effect (key text PRIMARY KEY, order_id bigint NOT NULL, tries integer NOT NULL DEFAULT 1)`.execute(db)
    await createProject(db, { name: 'default' })
    const [project] = await findProject(db, { name: 'default' })
    const token = newToken('read_write')
    await issueToken(db, { projectId: project?.id ?? null, access: 'read_write', sha256: hashToken(token), label: null })
    const apiPort = await freePort()
    const env = {
      PATH: process.env['PATH'],
      HOLDFAST_DATABASE_URL: url,
      HOLDFAST_API_PORT: String(apiPort),
      HOLDFAST_MANAGE_PORT: '0',
      HOLDFAST_MACHINES: join(import.meta.dirname, 'machines.ts'),
      HOLDFAST_LEASE_MS: '2000',
      HOLDFAST_HEARTBEAT_MS: '500',
      HOLDFAST_REAP_EVERY_MS: '250',
      HOLDFAST_PROCESS_BEAT_MS: '500',
      HOLDFAST_PROCESS_SILENT_MS: '3000',
      HOLDFAST_LOG_LEVEL: 'info',
      CHAOS_EFFECTS_URL: url,
    }
    const client = new HoldfastClient({ url: `http://127.0.0.1:${apiPort}`, token, timeoutMs: 5_000, retries: 8 })
    const system = new System(folder, postgres, db, client, env, onProgress)
    await Promise.all(ROLES.map((role) => system.startRole(role).started()))
    onProgress('six roles are up')
    return system
  }

  startRole(role: Role): RoleProcess {
    const started = new RoleProcess({
      role,
      env: this.#env,
      onLine: (line) => {
        // What a role calls an error is worth a look, whatever the run ends with.
        if (/"level":"(error|fatal)"/.test(line)) this.#onProgress(line)
      },
    })
    this.#roles.set(role, started)
    return started
  }

  async killRole(role: Role): Promise<void> {
    await this.#roles.get(role)?.end('SIGKILL')
    await this.startRole(role).started()
  }

  async killPostgres(): Promise<void> {
    const { port } = this.#postgres
    await this.#postgres.kill()
    this.#postgres = await startPostgres({ dataDir: join(this.#folder, 'data'), port, volatile: false })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const codes = await Promise.all([...this.#roles.values()].map(async (role) => `${role.role} ${await role.end('SIGTERM')}`))
    this.#onProgress(`stopped: ${codes.join(', ')}`)
    await this.db.destroy()
    await this.#postgres.stop()
    await rm(this.#folder, { recursive: true, force: true })
  }
}

/** Kills each role in turn, and the server once in the middle of the first round. */
class Killing {
  readonly kills: Record<string, number> = {}
  readonly #system: System
  readonly #everyMs: number
  readonly #onProgress: (line: string) => void
  readonly #round = Promise.withResolvers<void>()
  #stopped = false

  constructor(system: System, everyMs: number, onProgress: (line: string) => void) {
    this.#system = system
    this.#everyMs = everyMs
    this.#onProgress = onProgress
  }

  /** Everything has been killed at least once. */
  get roundDone(): Promise<void> {
    return this.#round.promise
  }
  stop(): void {
    this.#stopped = true
  }

  async run(): Promise<void> {
    const order = ['scheduler', 'flusher', 'api', 'postgres', 'reaper', 'formation-worker', 'sealer'] as const
    try {
      for (let turn = 0; !this.#stopped; turn += 1) {
        await sleep(this.#everyMs)
        const victim = order[turn % order.length] ?? 'scheduler'
        if (victim === 'postgres' && turn >= order.length) continue
        this.#onProgress(`kill ${victim}`)
        if (victim === 'postgres') await this.#system.killPostgres()
        else await this.#system.killRole(victim)
        this.kills[victim] = (this.kills[victim] ?? 0) + 1
        if (turn + 1 === order.length) this.#round.resolve()
      }
    } catch (error) {
      this.#round.reject(error)
      throw error
    }
  }
}

async function enqueueAll(client: HoldfastClient, orders: readonly number[], spreadMs: number): Promise<void> {
  const batches = 20
  const size = Math.ceil(orders.length / batches)
  for (let from = 0; from < orders.length; from += size) {
    // The correlation key makes it safe to send the batch again when the api was killed under it.
    await client.enqueueMany(
      orders.slice(from, from + size).map((order) => ({
        machine: 'checkout',
        state: { order },
        correlationKey: `order-${order}`,
        correlationScope: ['done', 'failed', 'cancelled'],
      })),
    )
    await sleep(spreadMs / batches)
  }
}

async function payAll(client: HoldfastClient, orders: readonly number[], spreadMs: number): Promise<void> {
  const endMs = performance.now() + spreadMs
  const left = [...orders]
  const total = orders.length
  const pay = async (order: number): Promise<void> => {
    try {
      await client.signal(
        { correlationKey: `order-${order}` },
        'payment_confirmed',
        { amount: order * 10 },
        {
          dedupKey: `payment-${order}`,
        },
      )
    } catch (error) {
      // The answer to the first delivery may have been lost with the process that made it, and the instance have ended by it since. Whether it was
      // delivered shows at the end, when every instance must be paid.
      if (!(error instanceof HoldfastApiError && error.code === 'not_found')) throw error
    }
  }
  await Promise.all(
    Array.from({ length: 16 }, async () => {
      for (let order = left.pop(); order !== undefined; order = left.pop()) {
        await pay(order)
        if (order % TWICE === 0) await pay(order)
        const aheadMs = endMs - spreadMs + (spreadMs * (total - left.length)) / total - performance.now()
        if (aheadMs > 5) await sleep(Math.min(aheadMs, 200))
      }
    }),
  )
}

async function untilEnded(db: Db, instances: number, settleMs: number, onProgress: (line: string) => void): Promise<void> {
  const untilMs = performance.now() + settleMs
  let shown = -1
  while (performance.now() < untilMs) {
    // The server may be down at this moment; the next look tells.
    const { rows } = await sql<{
      n: number
    }>`SELECT count(*)::integer AS n FROM holdfast.instance WHERE status IN ('done', 'failed', 'cancelled')`
      .execute(db)
      .catch(() => ({ rows: [] }))
    const ended = rows[0]?.n ?? shown
    if (ended !== shown) onProgress(`${ended} of ${instances} have ended`)
    shown = ended
    if (ended >= instances) return
    await sleep(500)
  }
}

async function inspect(db: Db, instances: number): Promise<Omit<ChaosReport, 'kills' | 'seconds'>> {
  const { rows: statuses } = await sql<{
    status: string
    n: number
  }>`SELECT status::text, count(*)::integer AS n FROM holdfast.instance GROUP BY status`.execute(db)
  const byStatus = Object.fromEntries(statuses.map((row) => [row.status, row.n]))
  const one = async (query: ReturnType<typeof sql<{ n: number }>>): Promise<number> => (await query.execute(db)).rows[0]?.n ?? -1
  const { done = 0, ...otherwise } = byStatus
  return {
    instances,
    done,
    otherwise,
    notEndedOnce: await one(sql`
      SELECT count(*)::integer AS n FROM holdfast.instance i
      WHERE (SELECT count(*) FROM holdfast.transition t WHERE t.instance_id = i.id AND t.to_status IN ('done', 'failed', 'cancelled')) <> 1`),
    effects: await one(sql`SELECT count(*)::integer AS n FROM chaos.effect`),
    repeatedTries: await one(sql`SELECT coalesce(sum(tries - 1), 0)::integer AS n FROM chaos.effect`),
    leftOutcomes: await one(sql`SELECT count(*)::integer AS n FROM holdfast.outcome`),
    leftSignals: await one(sql`SELECT count(*)::integer AS n FROM holdfast.signal`),
    quarantined: await one(sql`SELECT count(*)::integer AS n FROM holdfast.outcome_quarantine`),
    violations: await checkInvariants(db, { graceMs: 0 }),
  }
}

/** What is wrong with a report, in words; nothing when all is well. */
export function complaints(report: ChaosReport): string[] {
  const wrong: string[] = []
  const expect = (what: string, found: number, wanted: number): void => {
    if (found !== wanted) wrong.push(`${what}: ${found}, and ${wanted} were to be`)
  }
  expect('instances that ended as done', report.done, report.instances)
  expect('instances that did not end exactly once', report.notEndedOnce, 0)
  expect('effects by idempotency key', report.effects, report.instances)
  expect('outcomes left over', report.leftOutcomes, 0)
  expect('signals left over', report.leftSignals, 0)
  expect('outcomes in quarantine', report.quarantined, 0)
  for (const [status, count] of Object.entries(report.otherwise)) wrong.push(`${count} instances are ${status}`)
  for (const violation of report.violations) wrong.push(`invariant ${violation.id}: ${JSON.stringify(violation.rows.slice(0, 3))}`)
  for (const victim of [...ROLES, 'postgres']) if ((report.kills[victim] ?? 0) === 0) wrong.push(`${victim} was never killed`)
  return wrong
}
