import type { InstanceId, JsonValue, ProjectId } from '@holdfast/contracts'
import { Flusher, type Logger, type Machine, Reaper, Scheduler, type SchedulerOptions } from '@holdfast/engine'
import {
  createProject,
  deliverSignalById,
  enqueue,
  getHistory,
  getInstances,
  type InstanceRow,
  type NewInstance,
  releaseClaims,
  type TransitionRow,
  wakeWaiters,
} from '@holdfast/queries'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'

export interface LogLine {
  readonly level: 'debug' | 'info' | 'warn' | 'error'
  readonly message: string
  readonly fields: Record<string, unknown>
}

/** The whole suite runs both ways: see vitest.config.ts. */
export const FLUSH: 'staged' | 'direct' = process.env['HOLDFAST_TEST_FLUSH'] === 'direct' ? 'direct' : 'staged'

/** An engine in this process on a database of its own, driven by hand: nothing happens unless a test says so. */
export class EngineUnderTest {
  readonly database: TestDatabase
  readonly projectId: ProjectId
  readonly scheduler: Scheduler
  readonly flusher: Flusher
  readonly reaper: Reaper
  readonly log: LogLine[]
  /** Hints that were sent, as `channel:payload`. */
  readonly hinted: string[]

  private constructor(fields: Pick<EngineUnderTest, 'database' | 'projectId' | 'scheduler' | 'flusher' | 'reaper' | 'log' | 'hinted'>) {
    this.database = fields.database
    this.projectId = fields.projectId
    this.scheduler = fields.scheduler
    this.flusher = fields.flusher
    this.reaper = fields.reaper
    this.log = fields.log
    this.hinted = fields.hinted
  }

  static async on(machines: readonly Machine[], options: Partial<SchedulerOptions> = {}): Promise<EngineUnderTest> {
    const database = await testDatabase()
    const [project] = await createProject(database.db, { name: 'default' })
    if (project === undefined) throw new Error('the project was not created')
    const log: LogLine[] = []
    const hinted: string[] = []
    const at =
      (level: LogLine['level']) =>
      (fields: object, message: string): void =>
        void log.push({ level, message, fields: fields as Record<string, unknown> })
    const logger: Logger = { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') }
    const hints = { send: (channel: string, payload: string) => void hinted.push(`${channel}:${payload}`) }
    const { db } = database
    const connection = { connectionString: database.url }
    const scheduler = new Scheduler({ db, connection, machines, worker: 'worker-1', hints, logger, flush: FLUSH, ...options })
    await scheduler.declare()
    return new EngineUnderTest({
      database,
      projectId: project.id,
      scheduler,
      flusher: new Flusher({ db, hints, logger }),
      reaper: new Reaper({ db, connection, hints, logger }),
      log,
      hinted,
    })
  }

  /** A second scheduler on the same database. */
  another(machines: readonly Machine[], options: Partial<SchedulerOptions> = {}): Scheduler {
    return new Scheduler({
      db: this.database.db,
      connection: { connectionString: this.database.url },
      machines,
      worker: 'worker-2',
      hints: { send() {} },
      flush: FLUSH,
      ...options,
    })
  }

  async insert(machine: string, state: JsonValue = {}, more: Partial<NewInstance> = {}): Promise<InstanceId> {
    const [row] = await enqueue(this.database.db, {
      projectId: this.projectId,
      declaredOnly: true,
      instances: [{ machine, state: JSON.stringify(state), ...more }],
    })
    const id = row?.inserted?.[0]
    if (id === undefined) throw new Error(`not inserted: ${JSON.stringify(row)}`)
    return id
  }

  async signal(
    id: InstanceId,
    name: string,
    payload: JsonValue = {},
    dedupKey?: string,
  ): Promise<{ delivered: boolean; duplicate: boolean }> {
    const [row] = await deliverSignalById(this.database.db, {
      projectId: this.projectId,
      id,
      name,
      payload: JSON.stringify(payload),
      dedupKey,
    })
    return { delivered: row?.target_id != null, duplicate: row?.duplicate ?? false }
  }

  async get(id: InstanceId): Promise<InstanceRow> {
    const [row] = await getInstances(this.database.db, { projectId: this.projectId, ids: [id] })
    if (row === undefined) throw new Error(`no instance ${id}`)
    return row
  }

  history(id: InstanceId): Promise<TransitionRow[]> {
    return getHistory(this.database.db, { id, limit: 1_000 })
  }

  async flushAll(): Promise<{ applied: number; stale: number; quarantined: number }> {
    const sum = { applied: 0, stale: 0, quarantined: 0 }
    for (;;) {
      const result = await this.flusher.flush()
      sum.applied += result.applied
      sum.stale += result.stale
      sum.quarantined += result.quarantined
      if (result.taken === 0 && result.quarantined === 0) return sum
    }
  }

  /** Runs until nothing is runnable; with `travel`, whatever is scheduled is due at once. Answers how many steps ran. */
  async drain({ travel = false, maxSteps = 1_000 } = {}): Promise<number> {
    let ran = 0
    for (;;) {
      if (travel) await sql`UPDATE holdfast.instance SET eligible_at = now() WHERE status = 'scheduled'`.execute(this.database.db)
      await this.reaper.promote()
      await this.reaper.promoteThrottled()
      await this.reaper.waiters()
      await this.reaper.cancellations()
      const now = await this.scheduler.runOnce()
      const { applied } = await this.flushAll()
      ran += now
      if (now === 0 && applied === 0) return ran
      if (ran > maxSteps) throw new Error(`still running after ${maxSteps} steps`)
    }
  }

  /** Hands claims back that a test has taken by itself. */
  async release(claims: readonly { readonly id: InstanceId; readonly claim_epoch: string; readonly status: string }[]): Promise<void> {
    const held = claims.filter(({ status }) => status === 'executing')
    const { db } = this.database
    const released = await releaseClaims(db, { ids: held.map(({ id }) => id), epochs: held.map((row) => row.claim_epoch) })
    await wakeWaiters(db, {
      keys: released.flatMap((row) => (row.concurrency_key === null ? [] : [{ projectId: row.project_id, key: row.concurrency_key }])),
    })
  }

  /** As if the leases of everything that executes had run out. */
  async expireLeases(): Promise<void> {
    await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second' WHERE status = 'executing'`.execute(
      this.database.db,
    )
  }

  async inboxSize(id: InstanceId): Promise<number> {
    const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.signal WHERE target_id = ${id}::bigint`.execute(
      this.database.db,
    )
    return rows[0]?.n ?? -1
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.scheduler.stop()
    await this.reaper.stop()
    await this.database[Symbol.asyncDispose]()
  }
}
