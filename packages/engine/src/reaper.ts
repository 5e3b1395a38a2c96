import { Channels, type ProjectId } from '@holdfast/contracts'
import {
  cancelInstances,
  cancelOverdue,
  deleteFinished,
  deleteOldRuns,
  dropTransitionPartitions,
  endCascade,
  type EndedRow,
  endInstances,
  ensureTransitionPartitions,
  type Executor,
  fireAwaitDeadlines,
  hasReaperWork,
  type Key,
  Listener,
  nextCascade,
  promoteDue,
  reapExpired,
  removeDeadProcesses,
  sampleUnclaimable,
  type UnclaimableSample,
} from '@holdfast/queries'
import { type ConnectOptions, connectOne, type Db } from '@holdfast/schema'
import { metrics, type ObservableCallback } from '@opentelemetry/api'
import { DueTimer } from './due-timer.ts'
import type { Hints } from './hints.ts'
import { type Limiter, PostgresLimiter } from './limiter.ts'
import { type Logger, silentLogger } from './logger.ts'

export interface ReaperOptions {
  readonly db: Db
  readonly connection: ConnectOptions
  readonly hints: Hints
  readonly logger?: Logger
  /** How often expired leases are looked for. Default 1 s; a killed scheduler's work waits for its lease and this. */
  readonly reapEveryMs?: number
  /** How long the step of a cancelled instance may take to end by itself before its claim is taken away. Default 30 s. */
  readonly cancelGraceMs?: number
  /** Lost claims in one step before `crash_loop`, for machines that nobody has declared. Default 5. */
  readonly defaultMaxReclaims?: number
  /** How long finished instances are kept. Default 7 days; 0 deletes them with the next sweep. */
  readonly retentionMs?: number
  /** Days of history kept, today not counted. Default 14. */
  readonly historyDays?: number
  /** Silence after which a process is taken for dead. Default 60 s. */
  readonly processSilentMs?: number
  readonly listen?: boolean
  /** Who keeps gates, serial keys and rate limits. Default: rows of the same database. */
  readonly limiter?: Limiter
}

/** Rows healed by one statement: bounded, so that no sweep holds locks or a snapshot for long. */
const LIMIT = 1_000
const DUE_FLOOR_MS = 5_000
const SWEEP_EVERY_MS = 60_000
const PARTITIONS_EVERY_MS = 3_600_000
const PROCESSES_EVERY_MS = 30_000
const UNCLAIMABLE_EVERY_MS = 60_000
/** Looked at in each queue for the metric of what nobody can run; the metric counts no further. */
const UNCLAIMABLE_FRONT = 1_000
/** How often some of the keys that somebody waits for are looked at: the floor under what a process could not do because it died. */
const WAITERS_EVERY_MS = 10_000
/** Idle slots and buckets are removed after so long. */
const IDLE_LIMITS_MS = 3_600_000
/** How soon those are looked at who were being parked for a rate limit while it was changed. */
const CHANGED_LIMITS_EVERY_MS = 30_000
const FIRST_KEY: Key = { projectId: '0' as ProjectId, key: '' }

/**
 * Heals what others leave behind: expired leases, await deadlines, scheduled rows that are due, silent processes; and removes what is past
 * its retention. Every sweep is bounded, ordered and SKIP LOCKED: any number of reapers is safe, one is enough.
 */
export class Reaper {
  readonly name = 'reaper'
  readonly #options: ReaperOptions
  readonly #logger: Logger
  readonly #limiter: Limiter
  readonly #timers: readonly DueTimer[]
  readonly #scheduled: DueTimer
  readonly #throttled: DueTimer
  readonly #deadlines: DueTimer
  readonly #listener: Listener | undefined
  #running = false
  #lastKey = FIRST_KEY
  /** By queue, machine and version; what was there once is told as 0, because a series that is no longer observed keeps its last value. */
  readonly #unclaimable = new Map<string, UnclaimableSample>()
  readonly #gauge = metrics.getMeter('holdfast.engine').createObservableGauge('holdfast.queue.unclaimable', {
    unit: '{instance}',
    description: `Runnable instances of a machine and version that no scheduler has had for five minutes, among the first ${UNCLAIMABLE_FRONT} of each queue; looked at once a minute.`,
  })
  readonly #observeUnclaimable: ObservableCallback = (observed) => {
    for (const { queue, machine, version, count } of this.#unclaimable.values())
      observed.observe(count, { 'holdfast.queue': queue, 'holdfast.machine': machine, 'holdfast.version': version })
  }

  constructor(options: ReaperOptions) {
    this.#options = options
    const logger = (this.#logger = options.logger ?? silentLogger)
    this.#limiter = options.limiter ?? new PostgresLimiter(options.db)
    const every = (name: string, floorMs: number, run: () => Promise<number>): DueTimer =>
      // A full batch is followed by the next at once; otherwise the floor is the period.
      new DueTimer({ name, floorMs, logger, run: async () => ({ count: (await run()) >= LIMIT ? 1 : 0, nextInMs: null }) })

    this.#scheduled = new DueTimer({ name: 'scheduled', floorMs: DUE_FLOOR_MS, logger, run: () => this.promote() })
    this.#throttled = new DueTimer({ name: 'throttled', floorMs: DUE_FLOOR_MS, logger, run: () => this.promoteThrottled() })
    this.#deadlines = new DueTimer({ name: 'await deadlines', floorMs: DUE_FLOOR_MS, logger, run: () => this.fireDeadlines() })
    this.#timers = [
      this.#scheduled,
      this.#deadlines,
      every('claims', options.reapEveryMs ?? 1_000, () => this.claims()),
      this.#throttled,
      every('waiters', WAITERS_EVERY_MS, () => this.waiters()),
      every('changed limits', CHANGED_LIMITS_EVERY_MS, () => this.changedLimits()),
      every('idle limits', PARTITIONS_EVERY_MS, () => this.idleLimits()),
      every('retention', SWEEP_EVERY_MS, () => this.sweep()),
      every('schedule runs', PARTITIONS_EVERY_MS, () => this.scheduleRuns()),
      every('partitions', PARTITIONS_EVERY_MS, () => this.partitions()),
      every('processes', PROCESSES_EVERY_MS, () => this.processes()),
      every('unclaimable', UNCLAIMABLE_EVERY_MS, () => this.unclaimable()),
    ]
    this.#listener =
      options.listen === false
        ? undefined
        : new Listener({
            connect: () => connectOne(options.connection),
            channels: [Channels.timer],
            onNotification: (_channel, payload) => {
              this.#scheduled.dueIn(Number(payload))
              this.#deadlines.dueIn(Number(payload))
              this.#throttled.dueIn(Number(payload))
            },
            onError: (error) => logger.warn({ err: error }, 'not hearing notifications; polling meanwhile'),
          })
  }

  start(): void {
    if (this.#running) return
    this.#running = true
    this.#listener?.start()
    this.#gauge.addCallback(this.#observeUnclaimable)
    for (const timer of this.#timers) timer.start()
  }

  async stop(): Promise<void> {
    this.#running = false
    this.#gauge.removeCallback(this.#observeUnclaimable)
    await this.#listener?.stop()
    await Promise.all(this.#timers.map((timer) => timer.stop()))
  }

  isHealthy(): string | null {
    return this.#running ? null : 'the reaper is stopped'
  }

  /** Takes back expired claims and sees to cancellations, if there are any; answers how many. */
  async claims(): Promise<number> {
    const [work] = await hasReaperWork(this.#options.db, { graceMs: this.#options.cancelGraceMs ?? 30_000 })
    const reaped = work?.expired === true ? await this.reap() : 0
    const cancelled = work?.overdue === true || work?.cascades === true ? await this.cancellations() : 0
    return Math.max(reaped, cancelled)
  }

  /** Takes back expired claims; answers how many. */
  async reap(): Promise<number> {
    const { rows: reaped, queues } = await this.#end((trx) =>
      reapExpired(trx, { limit: LIMIT, defaultMaxReclaims: this.#options.defaultMaxReclaims ?? 5 }),
    )
    if (reaped.length > 0) {
      const failed = reaped.filter((row) => row.status === 'failed')
      this.#logger.warn(
        { reaped: reaped.length, workers: [...new Set(reaped.map((row) => row.claimed_by))].slice(0, 10) },
        'expired claims taken back',
      )
      if (failed.length > 0)
        this.#logger.error(
          { instance_ids: failed.slice(0, 10).map((row) => row.id), failed: failed.length },
          'instances failed with crash_loop',
        )
      this.#announce(new Set([...queues, ...reaped.filter((row) => row.status === 'runnable').map((row) => row.queue)]))
    }
    return reaped.length
  }

  async promote(): Promise<{ count: number; nextInMs: number | null }> {
    const [due] = await promoteDue(this.#options.db, { limit: LIMIT })
    this.#announce(due?.queues ?? [])
    return { count: due?.count ?? 0, nextInMs: due?.next_in_ms ?? null }
  }

  async promoteThrottled(): Promise<{ count: number; nextInMs: number | null }> {
    const due = await this.#limiter.promote(LIMIT)
    this.#announce(due?.queues ?? [])
    return { count: due?.count ?? 0, nextInMs: due?.next_in_ms ?? null }
  }

  /** Ends what was cancelled and did not stop in time, and cancels some children of cancelled parents; answers how many. */
  async cancellations(): Promise<number> {
    const { cancelGraceMs = 30_000 } = this.#options
    const overdue = await this.#end((trx) => cancelOverdue(trx, { graceMs: cancelGraceMs, limit: LIMIT }))
    if (overdue.rows.length > 0)
      this.#logger.warn(
        { cancelled: overdue.rows.length, instance_ids: overdue.rows.slice(0, 10).map(({ id }) => id) },
        'cancelled instances did not stop in time; their claims are over',
      )
    const cascaded = await this.#end(async (trx) => {
      const [next] = await nextCascade(trx, { limit: LIMIT })
      if (next === undefined) return []
      const children = next.children ?? []
      if (children.length < LIMIT) await endCascade(trx, { parentId: next.parent_id })
      if (children.length === 0) return []
      return cancelInstances(trx, { ids: children, projectId: null, reason: `Its parent ${next.parent_id} was cancelled.` })
    })
    for (const { id, status } of cascaded.rows) if (status === 'executing') this.#options.hints.send(Channels.cancel, id)
    this.#announce([...overdue.queues, ...cascaded.queues])
    // A cascade goes on at once: the next parent, or the rest of this one.
    return cascaded.rows.length > 0 ? LIMIT : overdue.rows.length
  }

  /** Looks after those who wait for some of the keys, from where the last look ended; answers how many it woke. */
  async waiters(): Promise<number> {
    const keys = await this.#limiter.waitedKeys(this.#lastKey, LIMIT)
    this.#lastKey = keys.length < LIMIT ? FIRST_KEY : (keys.at(-1) ?? FIRST_KEY)
    this.#announce(await this.#limiter.wake(keys))
    return keys.length
  }

  /** Gives those their time anew who were parked for a rate limit by what it was before it changed; answers how many. */
  async changedLimits(): Promise<number> {
    const { count, queues } = await this.#limiter.releaseChanged(LIMIT)
    this.#announce(queues)
    return count
  }

  async idleLimits(): Promise<number> {
    return this.#limiter.removeIdle(IDLE_LIMITS_MS, LIMIT)
  }

  async fireDeadlines(): Promise<{ count: number; nextInMs: number | null }> {
    const [due] = await fireAwaitDeadlines(this.#options.db, { limit: LIMIT })
    this.#announce(due?.queues ?? [])
    return { count: due?.count ?? 0, nextInMs: due?.next_in_ms ?? null }
  }

  /** Deletes one batch of finished instances past their retention; answers how many. */
  async sweep(): Promise<number> {
    const [deleted] = await deleteFinished(this.#options.db, { retentionMs: this.#options.retentionMs ?? 604_800_000, limit: LIMIT })
    return deleted?.count ?? 0
  }

  /** Deletes one batch of records of fired ticks past the retention, but none of the last day; answers how many. */
  async scheduleRuns(): Promise<number> {
    const retentionMs = Math.max(this.#options.retentionMs ?? 604_800_000, 86_400_000)
    const [deleted] = await deleteOldRuns(this.#options.db, { retentionMs, limit: LIMIT })
    return deleted?.count ?? 0
  }

  async partitions(): Promise<number> {
    await ensureTransitionPartitions(this.#options.db, { daysAhead: 3 })
    const [dropped] = await dropTransitionPartitions(this.#options.db, { keepDays: this.#options.historyDays ?? 14 })
    if ((dropped?.dropped ?? 0) > 0) this.#logger.info({ dropped: dropped?.dropped }, 'history partitions dropped')
    return 0
  }

  async processes(): Promise<number> {
    const dead = await removeDeadProcesses(this.#options.db, { silentMs: this.#options.processSilentMs ?? 60_000 })
    for (const row of dead)
      this.#logger.warn(
        { process_id: row.id, process_role: row.role, host: row.host, pid: row.pid },
        'a silent process was removed from the list',
      )
    return dead.length
  }

  /** Looks for what nobody can run and warns when that is new; answers 0, because there is nothing that a second look at once would add. */
  async unclaimable(): Promise<number> {
    const found = await sampleUnclaimable(this.#options.db, { front: UNCLAIMABLE_FRONT })
    const known = new Map(this.#unclaimable)
    for (const [series, sample] of known) this.#unclaimable.set(series, { ...sample, count: 0 })
    for (const sample of found) {
      const { queue, machine, version, count } = sample
      const series = JSON.stringify([queue, machine, version])
      this.#unclaimable.set(series, sample)
      if ((known.get(series)?.count ?? 0) === 0)
        this.#logger.warn(
          { queue, machine, version, instances: count },
          'no scheduler has had this machine and version for five minutes: its instances wait; start one that has it',
        )
    }
    return 0
  }

  #end<Row extends EndedRow>(end: (trx: Executor) => Promise<readonly Row[]>): ReturnType<typeof endInstances<Row>> {
    return endInstances(this.#options.db, end, (keys) => this.#limiter.wake(keys))
  }

  #announce(queues: Iterable<string>): void {
    for (const queue of queues) this.#options.hints.send(Channels.runnable, queue)
  }
}
