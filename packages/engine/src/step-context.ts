import type { Duration, InstanceId, JsonValue } from '@holdfast/contracts'
import { durationMs, Limits, type RateLimit, rateKeyOf } from '@holdfast/contracts'
import type { Span } from '@opentelemetry/api'
import type { Transaction } from 'kysely'
import type { Child } from './child.ts'
import type { Children } from './children.ts'
import { ShutdownError } from './errors.ts'
import { InstanceLogger, type Logger, type StepLogger } from './logger.ts'
import { makeOutcome, type Outcome } from './outcome.ts'

/** A signal as a step sees it: one of the names its machine declares, with that name's payload. */
export type ReceivedSignal<Payloads> = {
  [Name in keyof Payloads & string]: {
    readonly id: string
    readonly name: Name
    readonly payload: Payloads[Name]
    readonly receivedAt: Date
  }
}[keyof Payloads & string]

interface Identity {
  readonly id: InstanceId
  readonly machine: string
  readonly version: number
  readonly step: string
  /** 0 for the first try of this step, counted up by retries and not by lost claims. */
  readonly attempt: number
  /** How often the claim of this step has been lost: its process died, or it outran its lease. */
  readonly reclaims: number
  /** The same for every try of this step of this instance: give it to whatever performs the effect. */
  readonly idempotencyKey: string
  /** Aborted when the claim is lost, the step has timed out, or the process stops. */
  readonly signal: AbortSignal
  readonly log: StepLogger
  readonly span: Span
}

/** What a job's function is given beside its input. */
export interface JobContext extends Identity {}

type StateOption<State> = { readonly state?: State }

/** Limits of the step that comes next. */
export interface LimitOptions {
  /** A rate limit of the project: the step waits until it has taken `weight` tokens (default 1). Default: none, whatever this step had. */
  readonly rateLimit?: RateLimit
  readonly weight?: number
  /** Absent: the key stays. null: it is let go. A text: from then on the instance has that key. */
  readonly concurrencyKey?: string | null
}

/** The developer's own tables, where they do not say more: any name, any column. */
export type OwnTables = Record<string, Record<string, unknown>>

export interface StepContext<State, Payloads, Steps extends string> extends Identity {
  readonly state: State
  /** Signals that match the names of the await which led here, oldest first; consumed when this step moves on. Empty after a timeout. */
  readonly awaited: readonly ReceivedSignal<Payloads>[]
  /** Everything in the inbox, awaited or not. */
  readonly inbox: readonly ReceivedSignal<Payloads>[]
  /** What this instance has spawned, read page by page when it is asked for. */
  readonly children: Children

  /**
   * Go on with `step` at once. `inline`: under the same claim and in this process if its commit is known here (direct flush) and its limits allow; it saves the way
   * through the queue and passes by what is more urgent there. Default: as the machine says.
   */
  next(step: Steps, options?: StateOption<State> & LimitOptions & { readonly inline?: boolean }): Outcome<never>
  /** Go on with `step` after a while. */
  sleep(duration: Duration, step: Steps, options?: StateOption<State>): Outcome<never>
  /** Run this step again; what was awaited stays. */
  retry(options?: StateOption<State> & { readonly delay?: Duration }): Outcome<never>
  /**
   * Park until a signal with one of these names arrives, or the timeout passes; then run `step`. A signal that is in the inbox already and
   * that this step was not shown wakes at once. To collect a pack, await the whole set again until `ctx.awaited` holds all of it:
   * an await consumes nothing, and what was shown does not wake it again.
   */
  awaitSignal(
    names: (keyof Payloads & string) | readonly (keyof Payloads & string)[],
    step: Steps,
    options?: StateOption<State> & { readonly timeout?: Duration },
  ): Outcome<never>
  /**
   * Spawn children and park until so many of them have ended, however they ended: all (the default), any one, or a number. Then run `step`, which
   * sees them in `ctx.children`. The rest goes on; cancelling this instance cancels it. With a timeout `step` runs no later than that. A child whose correlation key
   * is occupied is not spawned and not waited for; with nothing to wait for `step` runs at once.
   */
  spawn(
    children: readonly Child[],
    step: Steps,
    options?: StateOption<State> & { readonly join?: 'all' | 'any' | number; readonly timeout?: Duration },
  ): Outcome<never>
  /** Go on as another version of this machine, at its `start` or the step given; whether that step exists is seen when it runs. */
  continueAs(version: number, options?: { readonly step?: string; readonly state?: unknown }): Outcome<never>
  /**
   * Runs `work` in a transaction of this database, and commits what it answers with what it wrote: exactly once, because the claim is locked and the answer is part of the
   * transaction. Return what this returns. The transaction is bounded: 30 s for a statement, 10 s for a pause between two.
   * Throws {@link LeaseLostError} if the claim is over, and what `work` throws; nothing is written then.
   */
  commit<Result, Tables = OwnTables>(work: (trx: Transaction<Tables>) => Promise<Outcome<Result>>): Promise<Outcome<Result>>
  /** The end, with a result. */
  done(): Outcome<null>
  done<Result>(result: Result): Outcome<Result>
  /** The end, as a failure: a text, an Error, or `{ code, message }`. */
  fail(reason: string | Error | { readonly code: string; readonly message: string }): Outcome<never>
  /** The end, because it is no longer wanted. */
  cancel(reason: string): Outcome<never>
}

/** What `onError` is given; the same outcomes, and what the retry policy would do. */
export interface ErrorContext<State, Payloads, Steps extends string> extends StepContext<State, Payloads, Steps> {
  /** Milliseconds that the retry policy would wait now; undefined: it would give up. */
  readonly policyDelayMs: number | undefined
}

interface Given extends Omit<Identity, 'signal' | 'idempotencyKey' | 'log'> {
  readonly logger: Logger
  readonly state: unknown
  readonly awaited: readonly unknown[]
  readonly inbox: readonly unknown[]
  readonly children: () => Children
  readonly commit: (work: (trx: Transaction<OwnTables>) => Promise<Outcome>) => Promise<Outcome>
  readonly policyDelayMs?: number | undefined
}

/**
 * The context of one run. A class, because one is made for each step: methods on a prototype cost nothing, and the AbortController
 * is made only for steps that look at it.
 */
export class RunContext implements StepContext<unknown, Record<string, JsonValue>, string> {
  readonly id: InstanceId
  readonly machine: string
  readonly version: number
  readonly step: string
  readonly attempt: number
  readonly reclaims: number
  readonly span: Span
  readonly state: unknown
  readonly awaited: readonly never[]
  readonly inbox: readonly never[]
  readonly policyDelayMs: number | undefined
  readonly #abort: LazyAbort
  readonly #given: Given

  constructor(given: Given, abort: LazyAbort) {
    this.id = given.id
    this.machine = given.machine
    this.version = given.version
    this.step = given.step
    this.attempt = given.attempt
    this.reclaims = given.reclaims
    this.#given = given
    this.span = given.span
    this.state = given.state
    this.awaited = given.awaited as readonly never[]
    this.inbox = given.inbox as readonly never[]
    this.policyDelayMs = given.policyDelayMs
    this.#abort = abort
  }

  get signal(): AbortSignal {
    return this.#abort.signal
  }
  get log(): StepLogger {
    const { id, machine, step, attempt } = this
    return new InstanceLogger(this.#given.logger, { instance_id: id, machine, step, attempt })
  }
  get idempotencyKey(): string {
    return `${this.id}:${this.step}`
  }

  get children(): Children {
    return this.#given.children()
  }
  commit<Result, Tables = OwnTables>(work: (trx: Transaction<Tables>) => Promise<Outcome<Result>>): Promise<Outcome<Result>> {
    // The connection is the same whatever tables its caller knows on it.
    return this.#given.commit(work as unknown as (trx: Transaction<OwnTables>) => Promise<Outcome>) as Promise<Outcome<Result>>
  }

  next(step: string, options: { state?: unknown; inline?: boolean } & LimitOptions = {}): Outcome<never> {
    const { state, inline, concurrencyKey } = options
    if (
      concurrencyKey !== undefined &&
      concurrencyKey !== null &&
      (typeof concurrencyKey !== 'string' || concurrencyKey.length === 0 || concurrencyKey.length > Limits.keyLength)
    )
      throw new TypeError(`a concurrency key has 1 to ${Limits.keyLength} characters; got ${JSON.stringify(concurrencyKey)}`)
    return makeOutcome<never>({ kind: 'next', step, state, inline, concurrencyKey, ...rateKeyOf(options.rateLimit, options.weight) })
  }
  spawn(
    children: readonly Child[],
    step: string,
    options: { state?: unknown; join?: 'all' | 'any' | number; timeout?: Duration } = {},
  ): Outcome<never> {
    const { join = 'all', timeout, state } = options
    const joinCount = join === 'all' ? undefined : join === 'any' ? 1 : join
    if (joinCount !== undefined && (!Number.isInteger(joinCount) || joinCount < 1))
      throw new TypeError(`join is 'all', 'any' or how many children have to end; got ${JSON.stringify(join)}`)
    const timeoutMs = timeout === undefined ? undefined : Math.max(1, durationMs(timeout))
    return makeOutcome<never>({ kind: 'spawn', step, children, joinCount, timeoutMs, state })
  }
  continueAs(version: number, options: { step?: string; state?: unknown } = {}): Outcome<never> {
    if (!Number.isInteger(version) || version < 1) throw new TypeError(`a version is a whole number of at least 1, not ${version}`)
    return makeOutcome<never>({ kind: 'continue_as', version, step: options.step ?? 'start', state: options.state })
  }
  sleep(duration: Duration, step: string, options: { state?: unknown } = {}): Outcome<never> {
    return makeOutcome<never>({ kind: 'sleep', step, delayMs: durationMs(duration), state: options.state })
  }
  retry(options: { state?: unknown; delay?: Duration } = {}): Outcome<never> {
    return makeOutcome<never>({ kind: 'retry', delayMs: durationMs(options.delay ?? 0), state: options.state })
  }
  awaitSignal(names: string | readonly string[], step: string, options: { state?: unknown; timeout?: Duration } = {}): Outcome<never> {
    const awaits = [...new Set(typeof names === 'string' ? [names] : names)]
    if (awaits.length === 0 || awaits.some((name) => typeof name !== 'string' || name.length === 0 || name.length > Limits.nameLength)) {
      throw new TypeError(
        `awaitSignal needs at least one signal name of 1 to ${Limits.nameLength} characters; got ${JSON.stringify(names)}`,
      )
    }
    // A timeout of 0 would be over before it began; 1 ms is the shortest the database takes.
    const timeoutMs = options.timeout === undefined ? undefined : Math.max(1, durationMs(options.timeout))
    return makeOutcome<never>({ kind: 'await_signal', step, awaits, timeoutMs, state: options.state })
  }
  done(result: unknown = null): Outcome<never> {
    return makeOutcome({ kind: 'done', result }) as Outcome<never>
  }
  fail(reason: unknown): Outcome<never> {
    return makeOutcome<never>({ kind: 'fail', reason })
  }
  cancel(reason: string): Outcome<never> {
    return makeOutcome<never>({ kind: 'cancel', reason })
  }
}

/** An AbortController that exists only once somebody looks at its signal; making one costs more than running a small step. */
export class LazyAbort {
  #controller: AbortController | undefined
  #reason: Error | undefined

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      if (this.#reason !== undefined) this.#controller.abort(this.#reason)
    }
    return this.#controller.signal
  }
  /** The first reason stays. */
  abort(reason: Error): void {
    if (this.#reason !== undefined) return
    this.#reason = reason
    this.#controller?.abort(reason)
  }
  get reason(): Error | undefined {
    return this.#reason
  }
  get stopping(): boolean {
    return this.#reason instanceof ShutdownError
  }
}
