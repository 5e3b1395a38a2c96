import { type Duration, durationMs } from '@holdfast/contracts'
import type { Db } from '@holdfast/schema'
import { type Crash, CrashPlan, type CrashPoint } from './crash.ts'
import type { Processes } from './processes.ts'
import { machineName, type OutcomeCounts, StepRecord } from './step-record.ts'
import { alignTicks, lookAhead, type Outlook } from './time-travel.ts'

export interface DrainOptions {
  /**
   * Absent: no time passes, and what waits for a time stays where it is. A duration, or a Date until which: as much time passes, no more and no less, and whatever comes
   * due in it happens at its time. `true`: time passes until no instance waits for it any more; cron schedules, which never end, tick as far as that takes.
   */
  readonly travel?: true | Duration | Date
  /** Steps after which the drain gives up, because a machine seems to go round in a circle. Default 1,000. */
  readonly maxSteps?: number
  /** Only work in these queues is done. Default: all. */
  readonly queues?: readonly string[]
  /**
   * Makes the process die that first comes to this point. Its lease runs out (for which time passes, also without `travel`), the reaper takes the claim back and the drain
   * goes on with a new process. A drain in which the point is not reached fails: it would have shown nothing.
   */
  readonly crashAt?: CrashPoint | Crash
  /** How often it crashes there. Default 1. */
  readonly times?: number
}

export interface Drained {
  /** How many steps ran. */
  readonly steps: number
  /** What they answered, by kind; a step that threw counts as what was made of it, `retry` or `fail`. What was lost in a crash counts too. */
  readonly outcomes: OutcomeCounts
  readonly crashes: number
  /** How much time was made to pass. */
  readonly travelledMs: number
}

const DEFAULT_MAX_STEPS = 1_000
/** Jumps in a row after which nothing moved; then what waits cannot be helped by time. */
const FUTILE_JUMPS = 3
/** Instances that are named when a drain gives up. */
const NAMED = 5

interface DrainedEngine {
  readonly db: Db
  readonly processes: Processes
  readonly flush: 'staged' | 'direct'
  /** How much time has passed in all. */
  travelledMs(): number
  letPass(ms: number): Promise<void>
}

/** One call of `drain()`. */
export class Drain {
  readonly #engine: DrainedEngine
  readonly #options: DrainOptions
  readonly #record = new StepRecord()
  readonly #crash: Crash | undefined
  readonly #plan: CrashPlan
  readonly #maxSteps: number
  /** Milliseconds that may pass; infinity for `travel: true`. */
  readonly #horizonMs: number
  #travelledMs = 0

  constructor(engine: DrainedEngine, options: DrainOptions) {
    this.#engine = engine
    this.#options = options
    const { travel, maxSteps = DEFAULT_MAX_STEPS, crashAt, times = 1 } = options
    if (!Number.isInteger(maxSteps) || maxSteps < 1) throw new TypeError(`maxSteps is a whole number of at least 1, not ${maxSteps}`)
    if (!Number.isInteger(times) || times < 1) throw new TypeError(`times is a whole number of at least 1, not ${times}`)
    this.#maxSteps = maxSteps
    this.#horizonMs =
      travel === true ? Number.POSITIVE_INFINITY : travel instanceof Date ? until(travel, engine.travelledMs()) : durationMs(travel ?? 0)
    const crash = (this.#crash = typeof crashAt === 'string' ? { at: crashAt } : crashAt)
    if (crash?.at === 'after-stage' && engine.flush === 'direct')
      throw new TypeError("nothing is staged with flush: 'direct', so there is no after-stage; take before-flush or after-flush")
    this.#plan = new CrashPlan(crash ?? { at: 'after-claim' }, crash === undefined ? 0 : times, this.#record)
  }

  async run(): Promise<Drained> {
    const { db, processes } = this.#engine
    processes.watch(this.#record, this.#plan, () => this.#engine.travelledMs())
    await alignTicks(db, this.#engine.travelledMs())
    for (let futile = 0; ; ) {
      const moved = await this.#settle()
      futile = moved ? 0 : futile + 1
      const jumpMs = this.#jump(await this.#lookAhead())
      if (jumpMs === undefined || futile > FUTILE_JUMPS) break
      await this.#letPass(jumpMs)
    }
    if (Number.isFinite(this.#horizonMs)) await this.#letPass(this.#horizonMs - this.#travelledMs)
    if (this.#plan.outstanding) throw new Error(this.#neverCrashed())
    return {
      steps: this.#record.steps,
      outcomes: this.#record.outcomes,
      crashes: this.#plan.happened,
      travelledMs: this.#travelledMs,
    }
  }

  /** Until nothing moves. Answers whether anything did. */
  async #settle(): Promise<boolean> {
    for (let passes = 0; ; passes += 1) {
      const ahead = await this.#lookAhead()
      let moved = await this.#pass(ahead)
      // What was parked for a key looks after itself behind our back, and a second pass finds whom it has woken.
      if (!moved && ahead.throttled) moved = await this.#pass(ahead)
      if (!moved) return passes > 0
    }
  }

  /** What the timers of the processes would do if each went off once, and then the work, until there is none. Answers whether anything came of it. */
  async #pass({ queues, tickMs }: Outlook): Promise<boolean> {
    const { db, processes } = this.#engine
    const { reaper } = processes
    let moved = (await reaper.promote()).count > 0
    moved = (await reaper.promoteThrottled()).count > 0 || moved
    moved = (await reaper.fireDeadlines()).count > 0 || moved
    moved = (await reaper.claims()) > 0 || moved
    await reaper.waiters() // answers the keys it has looked at; whom it woke runs now
    const wanted = this.#options.queues === undefined ? queues : queues.filter((queue) => this.#options.queues?.includes(queue))
    if (tickMs === 0) {
      moved = (await processes.tick(wanted)) > 0 || moved
      await alignTicks(db, this.#engine.travelledMs())
    }
    while (await this.#work(wanted)) moved = true
    return moved
  }

  /** One claim of each queue, what it claimed, and what came of that. */
  async #work(queues: readonly string[]): Promise<boolean> {
    const ran = queues.length === 0 ? 0 : await this.#engine.processes.runSteps(queues)
    if (ran === 'crashed') this.#record.lost()
    const flushed = await this.#engine.processes.flush()
    if (this.#record.steps >= this.#maxSteps && ran !== 0) throw new Error(this.#describeLoop())
    return ran !== 0 || flushed !== 0
  }

  /** How far to jump; undefined: no further. */
  #jump({ nextMs, tickMs, abandonedMs }: Outlook): number | undefined {
    // A schedule never ends, so with an open horizon its ticks only come in as far as something else lets time pass.
    if (nextMs === null && !Number.isFinite(this.#horizonMs)) return undefined
    const jumpMs = Math.min(nextMs ?? Number.POSITIVE_INFINITY, tickMs ?? Number.POSITIVE_INFINITY)
    const leftMs = Math.max(this.#horizonMs - this.#travelledMs, this.#plan.happened > 0 ? (abandonedMs ?? 0) : 0)
    return jumpMs > leftMs || leftMs === 0 ? undefined : jumpMs
  }

  async #letPass(ms: number): Promise<void> {
    if (ms <= 0) return
    await this.#engine.letPass(ms)
    this.#travelledMs += ms
  }

  #lookAhead(): Promise<Outlook> {
    return lookAhead(this.#engine.db)
  }

  #describeLoop(): string {
    const busiest = this.#record
      .busiest(NAMED)
      .map(({ place: { id, machine, step }, count }) => `  ${count} of instance ${id} (${machine}), the last one at step ${step}`)
    const outcomes = Object.entries(this.#record.outcomes).map(([kind, count]) => `${count} ${kind}`)
    return [
      `drain() gave up after ${this.#record.steps} steps (maxSteps ${this.#maxSteps}), because it would not come to an end. Steps ran most often for:`,
      ...busiest,
      `They answered ${outcomes.join(', ')}. A machine that goes round by intention needs an end that the test reaches, a travel that ends ('1 hour' instead of true), or a higher maxSteps.`,
    ].join('\n')
  }

  #neverCrashed(): string {
    const { at = '', machine, step, instance } = this.#crash ?? {}
    const aim = [
      machine === undefined ? '' : ` of machine ${machineName(machine)}`,
      step === undefined ? '' : ` at step ${step}`,
      instance === undefined ? '' : ` of instance ${instance}`,
    ].join('')
    const { happened } = this.#plan
    const steps = `${this.#record.steps} ${this.#record.steps === 1 ? 'step' : 'steps'} ran`
    return happened === 0
      ? `drain() did not crash: nothing came to ${at}${aim}; ${steps}. Is the instance enqueued, due, and at that step?`
      : `drain() crashed ${happened} times at ${at}${aim} and should have ${this.#options.times ?? 1} times; nothing came there again. ${steps}.`
  }
}

function until(date: Date, travelledMs: number): number {
  const ms = date.getTime() - (Date.now() + travelledMs)
  if (Number.isNaN(ms) || ms < 0) throw new TypeError(`time goes forward only: ${String(date)} is not ahead of now()`)
  return ms
}
