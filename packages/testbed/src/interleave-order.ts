import { setTimeout as sleep } from 'node:timers/promises'
import type { Db } from '@holdfast/schema'
import { sql } from 'kysely'
import { MutationError } from './interleave-mutation.ts'
import type { OpenSession, Session } from './interleave-session.ts'

export type Step<Context> = (session: Session, context: Context) => Promise<unknown>

/** Every way to merge the lists that keeps the order within each. */
export function* ordersOf(lists: readonly (readonly string[])[]): Generator<string[]> {
  if (lists.every((list) => list.length === 0)) yield []
  for (const [index, [head, ...rest]] of lists.entries()) {
    if (head === undefined) continue
    for (const tail of ordersOf(lists.with(index, rest))) yield [head, ...tail]
  }
}

export interface StepError {
  /** SQLSTATE, of the error or of what caused it. */
  readonly code?: string | undefined
  readonly constraint?: string | undefined
  readonly message: string
  readonly error: unknown
}

function stepError(error: unknown): StepError {
  for (let at = error; at instanceof Error; at = at.cause) {
    const { code, constraint } = at as { code?: unknown; constraint?: string }
    if (typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code)) return { code, constraint, message: at.message, error }
  }
  return { message: error instanceof Error ? error.message : String(error), error }
}

/** What each step did in one order; steps are named as `deliver.send`. */
export class Outcome {
  readonly #settled = new Map<string, PromiseSettledResult<unknown>>()
  /** The order as it was carried out. A step that had to wait says for whom: `deliver.send (waits for park)`. */
  readonly trace: string[] = []
  /** The sessions that a step waited for. */
  readonly waits = new Map<string, readonly string[]>()

  record(step: string, settled: PromiseSettledResult<unknown>): void {
    this.#settled.set(step, settled)
  }
  /** What a step returned. Throws what the step threw. */
  value<Value>(step: string): Value {
    const settled = this.#settled.get(step)
    if (settled === undefined) throw new Error(`step ${step} has not run`)
    if (settled.status === 'rejected') throw settled.reason
    return settled.value as Value
  }
  error(step: string): StepError | undefined {
    const settled = this.#settled.get(step)
    return settled?.status === 'rejected' ? stepError(settled.reason) : undefined
  }
  /** Steps that threw, as `deliver.send: 40P01`; with the message where there is no SQLSTATE. */
  get errors(): string[] {
    return [...this.#settled.keys()].flatMap((step) => {
      const error = this.error(step)
      return error === undefined ? [] : [`${step}: ${error.code ?? error.message}`]
    })
  }
}

/** The test itself is wrong, or nothing moves any more. It ends the whole run: neither a pass nor the failure that a mutation is to bring. */
export class InterleavingBrokenError extends Error {
  override readonly name = 'InterleavingBrokenError'
}

/** Class 42 is SQL that cannot run: a mutation that left no valid text, or a grant that is missing. */
export const isBroken = (error: unknown): boolean => error instanceof MutationError || stepError(error).code?.startsWith('42') === true
const isMistake = (error: unknown): boolean => error instanceof TypeError || error instanceof ReferenceError

const LOOK_AFTER_MS = 2
const LOOK_AGAIN_AFTER_MS = 5

interface Pending {
  readonly step: string
  readonly session: OpenSession
  readonly place: number
  readonly ended: Promise<void>
}

export interface OrderOptions<Context> {
  readonly steps: ReadonlyMap<string, Step<Context>>
  readonly sessions: ReadonlyMap<string, OpenSession>
  /** Sessions whose later steps do not run after one has thrown. */
  readonly stopOnError: ReadonlySet<string>
  readonly monitor: Db
  readonly context: Context
  readonly outcome: Outcome
  readonly hangMs: number
}

/**
 * Carries out one order. Before each step everything under way has either ended or waits for a lock that only a step to come can release, so that
 * the same order always meets the same locks. A step whose session is still waiting stands back, and runs as soon as the session is free.
 */
export class OrderRun<Context> {
  readonly #options: OrderOptions<Context>
  readonly #pending = new Map<string, Pending>()
  readonly #stopped = new Set<string>()
  #broken: Error | undefined

  constructor(options: OrderOptions<Context>) {
    this.#options = options
  }

  async run(order: readonly string[]): Promise<void> {
    const remaining = [...order]
    try {
      while (remaining.length > 0 || this.#pending.size > 0) {
        const next = remaining.findIndex((step) => !this.#pending.has(sessionOf(step)))
        const [step] = next < 0 ? [] : remaining.splice(next, 1)
        if (step !== undefined) this.#start(step)
        // With nothing to start, one of those that wait must end by itself: as the victim of a deadlock, or when its lock_timeout is over.
        await this.#settle(step === undefined)
        if (this.#broken !== undefined) throw this.#broken
      }
    } finally {
      await this.#abandon()
    }
  }

  #start(step: string): void {
    const { steps, sessions, outcome, context, stopOnError } = this.#options
    const name = sessionOf(step)
    const session = sessions.get(name)
    const body = steps.get(step)
    if (session === undefined || body === undefined) throw new InterleavingBrokenError(`there is no step ${step}`)
    if (this.#stopped.has(name)) {
      outcome.trace.push(`${step} (left out)`)
      return
    }
    const place = outcome.trace.push(step) - 1
    const end = (settled: PromiseSettledResult<unknown>): void => {
      outcome.record(step, settled)
      this.#pending.delete(name)
      if (settled.status === 'fulfilled') return
      if (stopOnError.has(name)) this.#stopped.add(name)
      const { reason } = settled as { reason: unknown }
      if (isBroken(reason) || isMistake(reason)) {
        this.#broken ??= new InterleavingBrokenError(`step ${step} cannot run: ${stepError(reason).code ?? ''} ${String(reason)}`, {
          cause: reason,
        })
      }
    }
    const ended = (async () => body(session, context))().then(
      (value) => end({ status: 'fulfilled', value }),
      (reason: unknown) => end({ status: 'rejected', reason }),
    )
    this.#pending.set(name, { step, session, place, ended })
  }

  /** Waits until whatever is under way has ended or is blocked; with `oneMustEnd`, until one of those that are blocked has ended. */
  async #settle(oneMustEnd: boolean): Promise<void> {
    const untilMs = performance.now() + this.#options.hangMs
    const before = this.#pending.size
    let lastLook = ''
    while (this.#pending.size > 0) {
      const pause = new AbortController()
      const ended = [...this.#pending.values()].map((pending) => pending.ended)
      await Promise.race([...ended, sleep(lastLook === '' ? LOOK_AFTER_MS : LOOK_AGAIN_AFTER_MS, undefined, pause).catch(() => undefined)])
      pause.abort()
      if (oneMustEnd && this.#pending.size < before) return
      if (this.#pending.size === 0) return
      const blockers = await this.#blockers()
      const names = [...this.#pending.keys()] // without those that ended during the look
      const look = names.map((name) => `${name}:${blockers.get(name)?.join('+') ?? ''}`).join(' ')
      if (names.every((name) => blockers.has(name))) {
        // A lock that an idle session holds stays held until its next step. One that a busy session holds is worth a second look:
        // that session may have been between two statements.
        const idleHolds = names.every((name) => blockers.get(name)?.some((by) => !this.#pending.has(by)))
        if (idleHolds || look === lastLook) {
          this.#noteWaits(blockers)
          if (!oneMustEnd && !isCyclic(blockers)) return
        }
        lastLook = look
      } else lastLook = ''
      if (performance.now() > untilMs) throw new InterleavingBrokenError(await this.#describeHang())
    }
  }

  /** For each session that waits for a lock of other sessions, their names. Others, such as autovacuum, end by themselves. */
  async #blockers(): Promise<Map<string, string[]>> {
    const names = new Map([...this.#options.sessions.values()].map(({ pid, name }) => [pid, name]))
    const pids = [...this.#pending.values()].map(({ session }) => session.pid)
    const { rows } = await sql<{ pid: number; blockers: number[] }>`
      /* interleave.blockers */ SELECT pid, pg_blocking_pids(pid) AS blockers FROM unnest(${pids}::integer[]) AS pid`.execute(
      this.#options.monitor,
    )
    return new Map(
      rows.flatMap(({ pid, blockers }) => {
        const by = [...new Set(blockers)].flatMap((blocker) => names.get(blocker) ?? []).sort()
        const name = names.get(pid)
        return name === undefined || by.length === 0 ? [] : [[name, by] as const]
      }),
    )
  }

  #noteWaits(blockers: ReadonlyMap<string, readonly string[]>): void {
    const { waits, trace } = this.#options.outcome
    for (const [name, by] of blockers) {
      const pending = this.#pending.get(name)
      if (pending === undefined || waits.has(pending.step)) continue
      waits.set(pending.step, by)
      trace[pending.place] = `${pending.step} (waits for ${by.join(' and ')})`
    }
  }

  async #describeHang(): Promise<string> {
    const { sessions, monitor, hangMs } = this.#options
    const pids = [...sessions.values()].map(({ pid }) => pid)
    const { rows } = await sql<{ pid: number; state: string; wait: string | null; query: string; blockers: number[] }>`
      SELECT pid, state, wait_event_type || '/' || wait_event AS wait, query, pg_blocking_pids(pid) AS blockers
      FROM pg_stat_activity WHERE pid = ANY (${pids}::integer[])`.execute(monitor)
    const nameOf = (pid: number): string => [...sessions.values()].find((session) => session.pid === pid)?.name ?? `backend ${pid}`
    const lines = [...sessions.values()].map(({ name, pid }) => {
      const row = rows.find((each) => each.pid === pid)
      if (row === undefined) return `${name} has lost its connection`
      const doing = this.#pending.get(name)?.step ?? 'between its steps'
      const by = row.blockers.length > 0 ? `waits for ${row.blockers.map(nameOf).join(' and ')}` : `is ${row.state} and waits for no lock`
      return `${name} (${doing}) ${by}${row.wait === null ? '' : `, ${row.wait}`}, last sent: ${row.query.slice(0, 200)}`
    })
    return `nothing has moved for ${hangMs} ms:\n    ${lines.join('\n    ')}`
  }

  /** After a failure: cancels what is still under way, so that the connections can be used or closed. */
  async #abandon(): Promise<void> {
    for (let attempts = 0; this.#pending.size > 0 && attempts < 20; attempts++) {
      const pending = [...this.#pending.values()]
      const pids = pending.map(({ session }) => session.pid)
      await sql`SELECT pg_cancel_backend(pid) FROM unnest(${pids}::integer[]) AS pid`.execute(this.#options.monitor)
      await Promise.race([Promise.all(pending.map(({ ended }) => ended)), sleep(20)])
    }
  }
}

function isCyclic(blockers: ReadonlyMap<string, readonly string[]>): boolean {
  const reaches = (from: string, to: string, seen: ReadonlySet<string>): boolean =>
    (blockers.get(from) ?? []).some((by) => by === to || (!seen.has(by) && reaches(by, to, new Set([...seen, by]))))
  return [...blockers.keys()].some((name) => reaches(name, name, new Set()))
}

export const sessionOf = (step: string): string => step.slice(0, step.indexOf('.'))
