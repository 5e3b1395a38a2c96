import { setImmediate as nextTurn } from 'node:timers/promises'
import { Channels } from '@holdfast/contracts'
import {
  type DueSchedule,
  type DueScheduleRow,
  type Executor,
  type FiredRow,
  type Firing,
  findDueSchedules,
  fireTicks,
  isConnectionLoss,
  isLostRace,
  recordScheduleFailures,
  type ScheduleFailure,
  sqlState,
} from '@holdfast/queries'
import { CronClock, InvalidCronError } from './cron-clock.ts'
import { type DueTicks, dueTicks } from './due-ticks.ts'
import { DueTimer } from './due-timer.ts'
import type { Hints } from './hints.ts'
import type { Logger } from './logger.ts'

export interface ScheduleTickerOptions {
  readonly db: Executor
  readonly hints: Hints
  readonly logger: Logger
  /** How far its calendar is ahead of the database's clock; see the scheduler's option. */
  readonly calendarAheadMs?: () => number
}

/** Schedules looked at in one pass. */
const SCHEDULES = 50
/** Ticks fired by one statement: its cost grows with their square, which is nothing up to here. */
const TICKS = 200
/** Ticks of one schedule that are computed in one turn of the event loop: some 25 ms. */
const TICKS_OF_ONE = 50
/** Another turn of the event loop after so many computations, because steps run in this process too. */
const COMPUTED_IN_A_TURN = 20
/** A look without a hint: what a dead process was about to fire, or a hint that got lost, is found by it. */
const FLOOR_MS = 5_000

type Failure = ScheduleFailure['error']

/**
 * Fires the ticks of cron schedules at their time. Any number may run: they all compute the same from the same row and the same clock, the database's, and what makes a
 * tick fire once is the statement that fires it (see fireTicks). No transaction is open while the library computes.
 */
export class ScheduleTicker {
  readonly #options: ScheduleTickerOptions
  readonly #timer: DueTimer

  constructor(options: ScheduleTickerOptions) {
    this.#options = options
    this.#timer = new DueTimer({ name: 'schedules', floorMs: FLOOR_MS, logger: options.logger, run: () => this.tick() })
  }

  start(): void {
    this.#timer.start()
  }
  /** A tick may be due in so many milliseconds. */
  dueIn(ms: number): void {
    this.#timer.dueIn(ms)
  }
  stop(): Promise<void> {
    return this.#timer.stop()
  }

  /** One pass: fires what is due. Answers how many schedules it has moved on, and when the next tick is. */
  async tick(): Promise<{ count: number; nextInMs: number | null }> {
    const rows = await findDueSchedules(this.#options.db, { limit: SCHEDULES })
    const due = rows.filter(isDue)
    const [clock] = rows
    if (clock === undefined || due.length === 0) return { count: 0, nextInMs: clock?.next_in_ms ?? null }

    const failures: ScheduleFailure[] = []
    const now = new Date(clock.now.getTime() + (this.#options.calendarAheadMs?.() ?? 0))
    const firings = await this.#compute(due, now, failures)
    const fired = await this.#fire(firings, failures)
    for (const queue of new Set(fired.flatMap((row) => row.queue ?? []))) this.#options.hints.send(Channels.runnable, queue)
    for (const row of fired) if (row.unknown_machine) failures.push(unknownMachine(row, due))
    await this.#record(failures)

    // Those that others have fired first are not due again before the tick after that.
    const nextMs = Math.min(...firings.map(({ nextAt }) => nextAt.getTime())) - clock.now.getTime()
    return {
      count: fired.filter((row) => !row.unknown_machine).length,
      nextInMs: Math.max(0, Math.min(clock.next_in_ms ?? FLOOR_MS, nextMs > 0 ? nextMs : FLOOR_MS)),
    }
  }

  async #compute(due: readonly DueSchedule[], now: Date, failures: ScheduleFailure[]): Promise<Firing[]> {
    const limit = Math.min(TICKS_OF_ONE, Math.max(1, Math.floor(TICKS / due.length)))
    const firings: Firing[] = []
    let computed = 0
    for (const schedule of due) {
      if (computed >= COMPUTED_IN_A_TURN) {
        computed = 0
        await nextTurn()
      }
      const found = compute(schedule, now, limit)
      if ('code' in found) failures.push(failureOf(schedule, found))
      else firings.push({ projectId: schedule.project_id, name: schedule.name, revision: schedule.revision, ...found })
      computed += 'code' in found ? 1 : found.ticks.length + 2
    }
    return firings
  }

  /** Fires all of them in one statement; if the database refuses it, each by itself, so that one cannot hold up the others. */
  async #fire(firings: readonly Firing[], failures: ScheduleFailure[]): Promise<FiredRow[]> {
    if (firings.length === 0) return []
    try {
      return await fireTicks(this.#options.db, { firings })
    } catch (error) {
      // Whoever won the race has fired what was due, or the database is away: the next look finds out.
      if (isLostRace(error) || isConnectionLoss(error)) throw error
      if (firings.length === 1) {
        const [{ projectId, name, revision }] = firings as [Firing]
        this.#options.logger.error({ err: error, project_id: projectId, schedule: name }, 'a tick was refused by the database')
        failures.push({ projectId, name, revision, error: refusal(error) })
        return []
      }
    }
    const fired: FiredRow[] = []
    for (const firing of firings) fired.push(...(await this.#fire([firing], failures)))
    return fired
  }

  async #record(failures: readonly ScheduleFailure[]): Promise<void> {
    if (failures.length === 0) return
    // Only those of which nobody else has said so already.
    for (const { project_id, name, code } of await recordScheduleFailures(this.#options.db, { failures }))
      this.#options.logger.warn({ project_id, schedule: name, code }, 'a schedule cannot be fired; its last_error says why')
  }
}

const isDue = (row: DueScheduleRow): row is DueSchedule & DueScheduleRow => row.name !== null
const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error)).slice(0, 2_000)

/** For whoever defined the schedule; the database's own words are in the log. */
function refusal(error: unknown): Failure {
  const { state = 'unknown', constraint } = sqlState(error) ?? {}
  const by = constraint === undefined ? '' : `, by ${constraint}`
  return { code: 'refused', message: `the database refused the instance (SQLSTATE ${state}${by}); the log of the scheduler has the reason` }
}

function compute(schedule: DueSchedule, now: Date, limit: number): DueTicks | Failure {
  try {
    const clock = new CronClock(schedule.cron, schedule.timezone)
    return (
      dueTicks(clock, { dueAt: schedule.next_at, now, catchUp: schedule.catch_up, limit }) ?? {
        code: 'invalid_schedule',
        message: `cron: ${JSON.stringify(schedule.cron)} has no tick any more`,
      }
    )
  } catch (error) {
    // It was valid when it was put: a library or its time zone data has changed since.
    return { code: error instanceof InvalidCronError ? 'invalid_schedule' : 'internal', message: messageOf(error) }
  }
}

const failureOf = ({ project_id: projectId, name, revision }: DueSchedule, error: Failure): ScheduleFailure => ({
  projectId,
  name,
  revision,
  error,
})

function unknownMachine(row: FiredRow, due: readonly DueSchedule[]): ScheduleFailure {
  const schedule = due.find(({ project_id, name }) => project_id === row.project_id && name === row.name)
  if (schedule === undefined) throw new Error(`fired ${row.name}, which was not due`)
  return failureOf(schedule, {
    code: 'unknown_machine',
    message: 'no scheduler has declared its machine (in that version); deploy one that exports it, or put the schedule with another',
  })
}
