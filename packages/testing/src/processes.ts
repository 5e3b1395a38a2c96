import { Flusher, type Logger, type Machine, Reaper, Scheduler } from '@holdfast/engine'
import { connect, type Db, engineSessionSettings } from '@holdfast/schema'
import { sql } from 'kysely'
import type { CrashPlan } from './crash.ts'
import { Mortal } from './mortal-driver.ts'
import { StepRecord, type Watched } from './step-record.ts'

/** Hints tell other processes to look; here there is nobody to tell, and a drain looks by itself. */
const NO_HINTS = { send: () => {} }
/** How long the end of a dead process's sessions is waited for. */
const END_OF_SESSIONS_MS = 10_000

export interface ProcessOptions {
  readonly url: string
  readonly machines: readonly Machine[]
  readonly flush: 'staged' | 'direct'
  readonly concurrency: number
  readonly logger: Logger
}

/** A process of the engine with connections of its own, which is thrown away when it dies. */
interface Living<Role> {
  readonly name: string
  readonly db: Db
  readonly mortal: Mortal
  readonly role: Role
}

/**
 * The engine's processes as a drain drives them: a scheduler that claims and runs, a flusher that applies, a reaper that heals. They are the real ones, called by hand
 * instead of by their timers. The first two can be made to crash, and are replaced then.
 */
export class Processes {
  readonly #options: ProcessOptions
  readonly #control: Db
  readonly reaper: Reaper
  #plan: CrashPlan | undefined
  #record: StepRecord | undefined
  #aheadMs = (): number => 0
  #scheduler: Living<Scheduler> | undefined
  #flusher: Living<Flusher> | undefined
  #queues = ''
  #born = 0

  constructor(options: ProcessOptions, control: Db) {
    this.#options = options
    this.#control = control
    const { url, logger } = options
    this.reaper = new Reaper({ db: control, connection: { connectionString: url }, hints: NO_HINTS, logger, listen: false })
  }

  /** From here on the steps are noted in `record`, `plan` decides who dies, and cron schedules go by a calendar that is so far ahead. */
  watch(record: StepRecord, plan: CrashPlan, aheadMs: () => number): void {
    this.#record = record
    this.#plan = plan
    this.#aheadMs = aheadMs
  }

  /** Claims and runs what is runnable in these queues, once; answers how many steps ran, or `crashed`. */
  async runSteps(queues: readonly string[]): Promise<number | 'crashed'> {
    const scheduler = await this.#schedulerFor(queues)
    return this.#untilDeath(scheduler, scheduler.role.runOnce())
  }

  /** Fires the ticks of cron schedules that are due; answers how many schedules it has moved on. */
  async tick(queues: readonly string[]): Promise<number> {
    return (await this.#schedulerFor(queues)).role.tickOnce()
  }

  /** Applies what is staged, a batch of it; answers how many outcomes, or `crashed`. */
  async flush(): Promise<number | 'crashed'> {
    this.#flusher ??= this.#makeFlusher()
    const result = await this.#untilDeath(this.#flusher, this.#flusher.role.flush())
    return result === 'crashed' ? 'crashed' : result.taken + result.quarantined
  }

  async close(): Promise<void> {
    await this.#retire()
    await this.#flusher?.db.destroy()
    this.#flusher = undefined
  }

  async #schedulerFor(queues: readonly string[]): Promise<Living<Scheduler>> {
    const key = queues.join('\n')
    if (this.#scheduler !== undefined && this.#queues === key) return this.#scheduler
    await this.#retire()
    this.#queues = key
    return (this.#scheduler = this.#makeScheduler(queues))
  }

  #makeScheduler(queues: readonly string[]): Living<Scheduler> {
    const { url, machines, logger, flush, concurrency } = this.#options
    const { name, db, mortal } = this.#give('worker', 4)
    const recordOf = (): StepRecord | undefined => (mortal.dead ? undefined : this.#record)
    const watched: Watched = {
      get record() {
        return recordOf()
      },
    }
    const role = new Scheduler({
      db,
      connection: { connectionString: url },
      machines: machines.map((machine) => StepRecord.watch(machine, watched)),
      queues: Object.fromEntries(queues.map((queue) => [queue, concurrency])),
      worker: name,
      hints: NO_HINTS,
      logger,
      flush,
      listen: false,
      calendarAheadMs: () => this.#aheadMs(),
    })
    return { name, db, mortal, role }
  }

  #makeFlusher(): Living<Flusher> {
    const { name, db, mortal } = this.#give('flusher', 2)
    return { name, db, mortal, role: new Flusher({ db, hints: NO_HINTS, logger: this.#options.logger }) }
  }

  #give(role: string, max: number): Omit<Living<never>, 'role'> {
    this.#born += 1
    const name = `test-${role}-${this.#born}`
    const mortal = new Mortal((moment) => this.#plan?.isFatal(moment) === true)
    const db = connect({
      connectionString: this.#options.url,
      max,
      applicationName: name,
      settings: engineSessionSettings,
      wrapDriver: mortal.wrap,
      onIdleError: () => {}, // its sessions are ended from outside when it dies
    })
    return { name, db, mortal }
  }

  async #untilDeath<Answer>({ name, db, mortal }: Living<unknown>, work: Promise<Answer>): Promise<Answer | 'crashed'> {
    const answer = await Promise.race([work, mortal.died.then(() => 'crashed' as const)])
    if (answer !== 'crashed' || !mortal.dead) return answer
    if (this.#scheduler?.name === name) this.#scheduler = undefined
    if (this.#flusher?.name === name) this.#flusher = undefined
    // Never ends where a connection is in use: whoever has it does not give it back any more.
    void db.destroy()
    await this.#endSessions(name)
    return 'crashed'
  }

  /** What the kernel does for a process that has died: its sessions end, and what they had not committed is rolled back. */
  async #endSessions(name: string): Promise<void> {
    const giveUpAtMs = performance.now() + END_OF_SESSIONS_MS
    for (;;) {
      // Answers false for one that has ended by itself since it was listed, so the next look decides.
      const { rows } = await sql`
SELECT pg_terminate_backend(pid, ${END_OF_SESSIONS_MS}::bigint) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = ${name}::text`.execute(this.#control)
      if (rows.length === 0) return
      if (performance.now() > giveUpAtMs) throw new Error(`sessions of the crashed ${name} did not end within ${END_OF_SESSIONS_MS} ms`)
    }
  }

  async #retire(): Promise<void> {
    await this.#scheduler?.db.destroy()
    this.#scheduler = undefined
  }
}
