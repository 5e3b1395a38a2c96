import { Channels, type InstanceId } from '@holdfast/contracts'
import {
  type ClaimedRow,
  type DueRow,
  declareMachines,
  type EndRow,
  getEnd,
  isConnectionLoss,
  keysToWake,
  Listener,
  promoteDue,
  refreshMachines,
  releaseClaims,
} from '@holdfast/queries'
import { type ConnectOptions, connectOne, type Db } from '@holdfast/schema'
import { trace } from '@opentelemetry/api'
import { wakeFreed } from './applied.ts'
import { DueTimer } from './due-timer.ts'
import { CancelledError, LeaseLostError, ShutdownError, WaitTimeoutError } from './errors.ts'
import type { Hints } from './hints.ts'
import { InstanceWaits, waitIsOver, type WaitUntil } from './instance-waits.ts'
import { type HeldClaim, LeaseKeeper } from './lease-keeper.ts'
import { type Limiter, PostgresLimiter } from './limiter.ts'
import { type Logger, silentLogger } from './logger.ts'
import type { Machine } from './machine.ts'
import { MachineRegistry } from './machine-registry.ts'
import { DirectSink, type OutcomeSink, StagingSink } from './outcome-sink.ts'
import { OutcomeWriter } from './outcome-writer.ts'
import { MOST_CLAIMED_AHEAD, QueueWorker } from './queue-worker.ts'
import type { Claimed, RunOutcome } from './run-step.ts'
import { ScheduleTicker } from './schedule-ticker.ts'

export interface SchedulerOptions {
  readonly db: Db
  /** For the connections that are not from the pool: the lease thread's and the one that hears notifications. */
  readonly connection: ConnectOptions
  readonly machines: Iterable<Machine>
  /** Steps that run at once here, by queue. Default: 100 in each queue that its machines name. */
  readonly queues?: Readonly<Record<string, number>>
  /** Names this process in `claimed_by` and in the history; unique among live ones. */
  readonly worker: string
  readonly hints: Hints
  readonly logger?: Logger
  /**
   * `staged`: outcomes go into a table and flushers apply them, those of all schedulers together. `direct`: this process applies its own, with the rights of a
   * flusher; faster, and what `inline` steps need. Default `staged`.
   */
  readonly flush?: 'staged' | 'direct'
  /** Most steps in a row that an instance goes on inline before it goes through the queue again, where what is more urgent comes first. Default 100. */
  readonly maxChain?: number
  /**
   * How long a claim is trusted without being renewed. Default 60 s. Short: a stalled network makes steps run twice; long: the work of a killed process
   * waits that long.
   */
  readonly leaseMs?: number
  /** How often leases are renewed. Default: a third of the lease. */
  readonly heartbeatMs?: number
  /** Longest pause between two looks at an idle queue; with several queues their number multiplies it, so that the process stays at one look per second. Default 1 s. */
  readonly maxIdleMs?: number
  /** Off where there are no sessions to listen on (a transaction-pooling proxy): polling then finds everything. Default true. */
  readonly listen?: boolean
  /** How long a stop waits for steps before it aborts their signal, and again before it hands their claims back. Default 10 s each. */
  readonly drainMs?: number
  /** How far the calendar that cron schedules go by is ahead of the database's clock: for tests that let time pass. Default: not at all. */
  readonly calendarAheadMs?: () => number
  /** Who keeps gates, serial keys and rate limits. Default: rows of the same database. */
  readonly limiter?: Limiter
}

const DEFAULT_CONCURRENCY = 100
const PROMOTE_LIMIT = 1_000
/** Outcomes waiting to be staged before claiming pauses: a database that is slow or away must not fill this process's memory. */
const MAX_UNSTAGED = 5_000
/** A look for due work without a hint; hints and what the last look said come in between. */
const DUE_FLOOR_MS = 5_000
/** How often it says that it is there; what nobody has said for five minutes counts as run by nobody. */
const DECLARED_EVERY_MS = 30_000

export interface WaitForOptions {
  /** Default 5 minutes. */
  readonly timeoutMs?: number
  /** `terminal`: it has ended. `settled`: that, or it is parked for a signal or for children. Default `terminal`. */
  readonly until?: WaitUntil
}

/**
 * Claims runnable instances from its queues, runs their steps and stages what they answer; fires the ticks of cron schedules. Any number may share a queue.
 * `start` and `stop` may be called again and again; `stop` waits for what is in flight and hands back every claim that is left.
 */
export class Scheduler {
  readonly name = 'scheduler'
  readonly #options: SchedulerOptions
  readonly #logger: Logger
  readonly #machines: MachineRegistry
  readonly #limiter: Limiter
  readonly #workers: ReadonlyMap<string, QueueWorker>
  readonly #sink: OutcomeSink
  readonly #writer: OutcomeWriter
  readonly #leases: LeaseKeeper
  readonly #due: DueTimer
  readonly #throttled: DueTimer
  readonly #ticker: ScheduleTicker
  readonly #declared: DueTimer
  #waits: InstanceWaits
  readonly #listener: Listener | undefined
  #state: 'stopped' | 'starting' | 'running' | 'stopping' = 'stopped'
  #stopping: Promise<void> | undefined

  constructor(options: SchedulerOptions) {
    this.#options = options
    const logger = (this.#logger = options.logger ?? silentLogger)
    this.#machines = new MachineRegistry(options.machines)
    const leaseMs = options.leaseMs ?? 60_000
    const heartbeatMs = options.heartbeatMs ?? Math.floor(leaseMs / 3)
    if (heartbeatMs * 2 > leaseMs)
      throw new RangeError(`heartbeatMs (${heartbeatMs}) must be at most half of leaseMs (${leaseMs}), or one slow renewal loses the lease`)

    const limiter = (this.#limiter = options.limiter ?? new PostgresLimiter(options.db))
    const resources = { db: options.db, limiter, worker: options.worker, hints: options.hints, logger }
    this.#sink = options.flush === 'direct' ? new DirectSink({ ...resources, leaseMs }) : new StagingSink(resources)
    this.#writer = new OutcomeWriter({ sink: this.#sink, logger, onWritten: (outcomes) => this.#onWritten(outcomes) })
    const queues = Object.entries(options.queues ?? defaultQueues(this.#machines))
    this.#leases = new LeaseKeeper({
      // Executing, claimed ahead, and finished but not staged yet.
      capacity: queues.reduce((sum, [, concurrency]) => sum + concurrency + MOST_CLAIMED_AHEAD, 2 * MAX_UNSTAGED),
      connection: options.connection,
      leaseMs,
      heartbeatMs,
      logger,
      onLost: (id, epoch) => this.#onLost(id, epoch),
      onCancelling: (id) => this.#onCancelling(id),
    })

    const workers = new Map<string, QueueWorker>()
    for (const [queue, concurrency] of queues) {
      if (!Number.isInteger(concurrency) || concurrency < 1)
        throw new RangeError(`the concurrency of queue ${queue} must be a whole number of at least 1, not ${concurrency}`)
      workers.set(
        queue,
        new QueueWorker({
          db: options.db,
          queue,
          concurrency,
          worker: options.worker,
          leaseMs,
          machines: this.#machines,
          limiter,
          logger,
          tracer: trace.getTracer('holdfast.engine'),
          maxIdleMs: (options.maxIdleMs ?? 1_000) * queues.length,
          maxUnstaged: MAX_UNSTAGED,
          unstaged: () => this.#writer.pending,
          onClaimed: (claims) => this.#leases.hold(claims.map(({ row }) => ({ id: row.id, epoch: row.claim_epoch }))),
          onUnrun: (claims) => void this.#handBack(claims),
          onTimed: ({ row }: Claimed, timeoutMs) => this.#leases.limit({ id: row.id, epoch: row.claim_epoch }, timeoutMs),
          onParked: (rows) => this.#onParked(rows),
          maxChain: this.#sink.continues ? (options.maxChain ?? 100) : 0,
          commit: (trx, outcome) => this.#sink.commit(trx, outcome),
          onOutcome: (outcome, settle) => {
            // Committed by the step itself: only its claim is left to let go.
            if (outcome.durable) this.#onWritten([outcome])
            else this.#writer.add(outcome, settle)
          },
        }),
      )
    }
    this.#workers = workers
    this.#throttled = new DueTimer({ name: 'throttled', floorMs: DUE_FLOOR_MS, logger, run: () => this.#promoteThrottled() })
    const wakeThere = { send: (_channel: string, queue: string) => this.#wake(queue) }
    this.#ticker = new ScheduleTicker({
      db: options.db,
      hints: wakeThere,
      logger,
      ...(options.calendarAheadMs === undefined ? {} : { calendarAheadMs: options.calendarAheadMs }),
    })
    this.#declared = new DueTimer({
      name: 'declared machines',
      floorMs: DECLARED_EVERY_MS,
      logger,
      run: async () => {
        await this.refreshDeclared()
        return { count: 0, nextInMs: null }
      },
    })
    this.#waits = new InstanceWaits(options.db)
    this.#due = new DueTimer({ name: 'scheduled', floorMs: DUE_FLOOR_MS, logger, run: () => this.#promote() })
    this.#listener =
      options.listen === false
        ? undefined
        : new Listener({
            connect: () => connectOne(options.connection),
            channels: [Channels.runnable, Channels.timer, Channels.schedule, Channels.cancel],
            onNotification: (channel, payload) => {
              if (channel === Channels.runnable) this.#workers.get(payload)?.wake()
              else if (channel === Channels.cancel) this.#onCancelling(payload as InstanceId)
              else if (channel === Channels.schedule) this.#ticker.dueIn(Number(payload))
              else this.#due.dueIn(Number(payload))
            },
            onConnected: () => {
              for (const worker of this.#workers.values()) worker.wake()
              this.#due.dueIn(0)
              this.#ticker.dueIn(0)
            },
            onError: (error) => logger.warn({ err: error }, 'not hearing notifications; polling meanwhile'),
          })
  }

  async start(): Promise<void> {
    if (this.#state !== 'stopped') return
    this.#state = 'starting'
    await this.#declare()
    // A stop may have come while the database was away.
    if ((this.#state as string) !== 'starting') return
    this.#state = 'running'
    this.#leases.start()
    this.#listener?.start()
    this.#due.start()
    this.#throttled.start()
    this.#ticker.start()
    this.#declared.start()
    for (const worker of this.#workers.values()) worker.start()
  }

  /** Waits for running steps, then aborts them, then hands their claims back; outcomes are staged before it resolves. */
  stop(): Promise<void> {
    if (this.#state === 'stopped') return Promise.resolve()
    this.#stopping ??= this.#stop().finally(() => {
      this.#state = 'stopped'
      this.#stopping = undefined
    })
    return this.#stopping
  }

  /** Claims and runs once from every queue, staging included; answers how many steps ran. For tests and drains, without `start`. */
  async runOnce(): Promise<number> {
    let ran = 0
    for (const worker of this.#workers.values()) ran += await worker.runOnce()
    await this.#writer.drained()
    return ran
  }

  /** Fires the ticks of cron schedules that are due; answers how many schedules it has moved on. For tests and drains, without `start`. */
  async tickOnce(): Promise<number> {
    return (await this.#ticker.tick()).count
  }

  /** Tells the deployment which machines this process can run; part of `start`. */
  async declare(): Promise<void> {
    const machines = this.#machines.values().map(({ name, version, queue, maxReclaims }) => ({ name, version, queue, maxReclaims }))
    if (machines.length > 0) await declareMachines(this.#options.db, { machines })
  }

  /** Says that its machines are still run here: what nobody says that of is shown as unclaimable. */
  async refreshDeclared(): Promise<void> {
    const machines = this.#machines.values().map(({ name, version }) => ({ name, version }))
    if (machines.length > 0) await refreshMachines(this.#options.db, { machines, staleMs: DECLARED_EVERY_MS / 2 })
  }

  /**
   * Waits in this process until an instance has come as far as `until`, and answers how it stands then; an end in failure is an answer too. It may run anywhere: the row
   * is looked at every 25 to 250 ms, one statement for all who wait here, and at once when this process has applied something itself (direct flush).
   * Throws {@link WaitTimeoutError} when the time is over, {@link ShutdownError} when the scheduler stops. Not for steps, which would
   * hold their place meanwhile: a step that waits for others spawns them.
   */
  async waitFor(id: InstanceId, { timeoutMs = 300_000, until = 'terminal' }: WaitForOptions = {}): Promise<EndRow> {
    const untilMs = performance.now() + timeoutMs
    const waits = this.#waits
    for (;;) {
      const [row] = await getEnd(this.#options.db, { id })
      if (row === undefined) throw new Error(`there is no instance ${id}: it was never inserted, or it is past its retention`)
      if (waitIsOver(until, row.status)) return row
      if (waits !== this.#waits) throw new ShutdownError(`the scheduler stopped while instance ${id} was waited for; it goes on`)
      const restMs = untilMs - performance.now()
      if (restMs <= 0)
        throw new WaitTimeoutError(`instance ${id} was still ${row.status} after ${timeoutMs} ms; it goes on, and can be waited for again`)
      await waits.wait(id, until, restMs)
    }
  }

  /** null, or what is wrong: for the liveness probe. A database that is away is not the process's fault and no reason to restart it. */
  isHealthy(): string | null {
    return this.#state === 'running' || this.#state === 'starting' ? null : `the scheduler is ${this.#state}`
  }

  stats(): { readonly running: number; readonly buffered: number; readonly unstaged: number } {
    let running = 0
    let buffered = 0
    for (const worker of this.#workers.values()) {
      running += worker.running
      buffered += worker.buffered
    }
    return { running, buffered, unstaged: this.#writer.pending }
  }

  async #declare(): Promise<void> {
    for (let attempt = 0; this.#state === 'starting'; attempt += 1) {
      try {
        await this.declare()
        return
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
        if (attempt === 0) this.#logger.warn({ err: error }, 'the database is away; waiting for it')
        await pause(Math.min(2_000, 100 * 2 ** Math.min(attempt, 8)))
      }
    }
  }

  async #stop(): Promise<void> {
    const wasRunning = this.#state === 'running'
    this.#state = 'stopping'
    const workers = wasRunning ? [...this.#workers.values()] : []
    // Before anything is waited for, so that nothing is claimed or started meanwhile.
    const stopped = Promise.all(workers.map((worker) => worker.stop()))
    await this.#due.stop()
    await this.#throttled.stop()
    await this.#ticker.stop()
    await this.#declared.stop()
    await this.#listener?.stop()
    const unstarted = (await stopped).flat()
    if (wasRunning) {
      const drainMs = this.#options.drainMs ?? 10_000
      await this.#handBack(unstarted)
      const idle = Promise.all(workers.map((worker) => worker.idle()))
      if (!(await within(idle, drainMs))) {
        for (const worker of workers) worker.abortAll(new ShutdownError('the process is stopping'))
        if (!(await within(idle, drainMs))) {
          const left = workers.flatMap((worker) => worker.stillRunning())
          this.#logger.warn(
            { steps: left.length, instance_ids: left.slice(0, 10).map(({ id }) => id) },
            'steps did not end in time; their claims are handed back',
          )
          await this.#handBack(left)
        }
      }
      if (!(await within(this.#writer.drained(), drainMs))) {
        this.#logger.error({ outcomes: this.#writer.pending }, 'outcomes could not be stored before the stop; their steps will run again')
        this.#writer.abandon()
      }
    }
    await this.#leases.stop()
    this.#waits.stop()
    this.#waits = new InstanceWaits(this.#options.db)
  }

  #onWritten(outcomes: readonly RunOutcome[]): void {
    this.#leases.drop(outcomes.map((outcome) => ({ id: outcome.instanceId, epoch: outcome.claimEpoch })))
    for (const worker of this.#workers.values()) worker.refill()
    if (this.#sink.continues) this.#waits.nudge()
  }

  #onLost(id: InstanceId, epoch: string): void {
    this.#logger.warn({ instance_id: id, claim_epoch: epoch }, 'a claim was lost; its step is told and its outcome will be dropped')
    const reason = new LeaseLostError(`the claim of instance ${id} is over: its lease ran out or it was claimed again`)
    for (const worker of this.#workers.values()) worker.lose(id, epoch, reason)
  }

  #onCancelling(id: InstanceId): void {
    const reason = new CancelledError(`instance ${id} was cancelled; end its step soon`)
    for (const worker of this.#workers.values()) worker.cancel(id, reason)
  }

  /** Looks after those that were denied: a key may have become free while it was being refused, and a rate limit says when. */
  #onParked(rows: readonly ClaimedRow[]): void {
    let soonestMs = Number.POSITIVE_INFINITY
    for (const { throttled_ms: ms } of rows) if (ms !== null) soonestMs = Math.min(soonestMs, ms)
    if (soonestMs !== Number.POSITIVE_INFINITY) this.#throttled.dueIn(Math.max(0, soonestMs))
    const keys = keysToWake(rows)
    const hints = { send: (_channel: string, queue: string) => this.#wake(queue) }
    void wakeFreed({ limiter: this.#limiter, hints, logger: this.#logger }, keys)
  }

  async #handBack(claims: readonly HeldClaim[]): Promise<void> {
    if (claims.length === 0) return
    this.#leases.drop(claims)
    try {
      const released = await releaseClaims(this.#options.db, { ids: claims.map(({ id }) => id), epochs: claims.map(({ epoch }) => epoch) })
      for (const queue of new Set(released.map((row) => row.queue))) this.#options.hints.send(Channels.runnable, queue)
      await wakeFreed(
        { limiter: this.#limiter, hints: this.#options.hints, logger: this.#logger },
        released.flatMap(({ project_id: projectId, concurrency_key: key }) => (key === null ? [] : [{ projectId, key }])),
      )
    } catch (error) {
      this.#logger.warn({ err: error, claims: claims.length }, 'claims could not be handed back; their leases will run out')
    }
  }

  async #promote(): Promise<{ count: number; nextInMs: number | null }> {
    const [due] = await promoteDue(this.#options.db, { limit: PROMOTE_LIMIT })
    return this.#announceDue(due)
  }
  async #promoteThrottled(): Promise<{ count: number; nextInMs: number | null }> {
    return this.#announceDue(await this.#limiter.promote(PROMOTE_LIMIT))
  }
  #announceDue(due: DueRow | undefined): { count: number; nextInMs: number | null } {
    for (const queue of due?.queues ?? []) this.#wake(queue)
    return { count: due?.count ?? 0, nextInMs: due?.next_in_ms ?? null }
  }

  /** Here at once, elsewhere by a hint. */
  #wake(queue: string): void {
    this.#workers.get(queue)?.wake()
    this.#options.hints.send(Channels.runnable, queue)
  }
}

function defaultQueues(machines: MachineRegistry): Record<string, number> {
  return Object.fromEntries(machines.values().map(({ queue }) => [queue, DEFAULT_CONCURRENCY]))
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Whether `promise` settles within `ms`; it goes on either way. */
async function within(promise: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms)
  })
  try {
    return await Promise.race([promise.then(() => true), late])
  } finally {
    clearTimeout(timer)
  }
}
