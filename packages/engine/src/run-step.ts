import { FailureCodes, type FailureRecord, type InstanceId, NotStorableError, storableJson } from '@holdfast/contracts'
import { boundTransaction, type ClaimedRow, type Executor, type InboxRow, lockClaim, type StagedOutcome } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { context, propagation, ROOT_CONTEXT, type Span, SpanKind, SpanStatusCode, type Tracer, trace } from '@opentelemetry/api'
import type { StandardSchemaV1 } from '@standard-schema/spec'
import type { Transaction } from 'kysely'
import { LeaseLostError, StepTimeoutError, TerminalError } from './errors.ts'
import { encodeChildren } from './child.ts'
import { Children } from './children.ts'
import type { Logger } from './logger.ts'
import type { CompiledStep, Machine } from './machine.ts'
import { isOutcome, type Outcome } from './outcome.ts'
import { nextDelayMs } from './retry-policy.ts'
import { type LazyAbort, type OwnTables, RunContext } from './step-context.ts'

/** A claimed instance with its inbox and the abort that its step sees. */
export interface Claimed {
  readonly row: ClaimedRow
  readonly inbox: readonly InboxRow[]
  readonly abort: LazyAbort
  /** `performance.now()` when the claim returned. */
  readonly claimedAtMs: number
  /** Steps that have run inline before this one. */
  readonly chain: number
}

/** What a run answered; the ages are filled in when it is staged. */
export type RunOutcome = Omit<StagedOutcome, 'claimedAgoUs' | 'startedAgoUs' | 'finishedAgoUs'> & {
  readonly claimedAtMs: number
  readonly startedAtMs: number
  readonly finishedAtMs: number
  /** The step would like its next one to run under this claim. */
  readonly inline: boolean
  /** Committed by the step itself, with its own writes. */
  readonly durable: boolean
}

export interface RunnerResources {
  readonly db: Db
  /** Stores one outcome in a step's own transaction; false: its claim is over. */
  readonly commit: (trx: Executor, outcome: RunOutcome) => Promise<{ readonly landed: boolean; readonly afterCommit: () => Promise<void> }>
  readonly logger: Logger
  readonly tracer: Tracer
  readonly random?: () => number
}

/**
 * Runs one step outside any transaction and answers what is to be staged. Never throws: whatever step code does becomes an outcome, by its
 * own `onError`, else by the retry policy, else as a failure that says what happened.
 */
export async function runStep(claimed: Claimed, machine: Machine, resources: RunnerResources): Promise<RunOutcome> {
  const startedAtMs = performance.now()
  const { row } = claimed
  const parent = row.traceparent === null ? ROOT_CONTEXT : propagation.extract(ROOT_CONTEXT, { traceparent: row.traceparent })
  const span = resources.tracer.startSpan(
    `step ${row.machine}.${row.step}`,
    {
      kind: SpanKind.CONSUMER,
      attributes: {
        'holdfast.instance.id': row.id,
        'holdfast.machine': row.machine,
        'holdfast.step': row.step,
        'holdfast.attempt': row.attempt,
      },
    },
    parent,
  )
  try {
    const run = new StepRun(claimed, machine, resources, span)
    const encoded = await (span.isRecording() ? context.with(trace.setSpan(parent, span), () => run.encoded()) : run.encoded())
    if (encoded.error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR })
    return { ...encoded, claimedAtMs: claimed.claimedAtMs, startedAtMs, finishedAtMs: performance.now(), durable: run.durable }
  } finally {
    span.end()
  }
}

type Encoded = Omit<RunOutcome, 'claimedAtMs' | 'startedAtMs' | 'finishedAtMs' | 'durable'>

/** Longest statement, and longest pause between two, in a step's own transaction: it holds its instance's lock. */
const STATEMENT_TIMEOUT_MS = 30_000
const IDLE_TIMEOUT_MS = 10_000

class StepRun {
  readonly #claimed: Claimed
  readonly #machine: Machine
  readonly #resources: RunnerResources
  readonly #span: Span
  /** Awaited by name, in inbox order; what the step consumes when it moves on. */
  readonly #awaitedRows: readonly InboxRow[]
  #state: unknown
  #inbox: readonly unknown[] = []
  #awaited: readonly unknown[] = []
  #committed: Encoded | undefined

  constructor(claimed: Claimed, machine: Machine, resources: RunnerResources, span: Span) {
    this.#claimed = claimed
    this.#machine = machine
    this.#resources = resources
    this.#span = span
    const awaits = claimed.row.awaits
    this.#awaitedRows = awaits === null ? [] : claimed.inbox.filter((signal) => awaits.includes(signal.name))
    this.#state = claimed.row.state
  }

  get durable(): boolean {
    return this.#committed !== undefined
  }

  async encoded(): Promise<Encoded> {
    const { row } = this.#claimed
    const step = this.#machine.steps.get(row.step)
    if (step === undefined) {
      const known = [...this.#machine.steps.keys()].join(', ')
      return this.#failure({
        code: FailureCodes.unknownStep,
        message: `Machine ${row.machine} version ${row.version} has no step ${row.step}; it has ${known}. Deploy the version that has it, or retry the instance at another step.`,
      })
    }
    try {
      await this.#validate()
      const answer = await this.#call(step)
      return this.#committed ?? this.#encode(answer)
    } catch (error) {
      if (this.#committed === undefined) return this.#onError(error, step)
      this.#resources.logger.warn({ instance_id: row.id, step: row.step, err: error }, 'a step threw after its commit, which stands')
      return this.#committed
    }
  }

  /** `ctx.commit`: the developer's writes and the outcome, or neither. */
  async #commit(work: (trx: Transaction<OwnTables>) => Promise<Outcome>): Promise<Outcome> {
    const { row } = this.#claimed
    const { db, commit } = this.#resources
    if (this.#committed !== undefined) throw new TerminalError(`step ${row.step} has committed already; a step commits once`)
    const lost = (): LeaseLostError =>
      new LeaseLostError(`the claim of instance ${row.id} is over, or it was cancelled; nothing of this commit was written`)
    const { answer, encoded, afterCommit } = await db.transaction().execute(async (trx) => {
      await boundTransaction(trx, { statementMs: STATEMENT_TIMEOUT_MS, idleMs: IDLE_TIMEOUT_MS })
      if ((await lockClaim(trx, { id: row.id, claimEpoch: row.claim_epoch })).length === 0) throw lost()
      const answered = this.#checked(await work(trx as unknown as Transaction<OwnTables>))
      const outcome = { ...this.#encode(answered), inline: false }
      const nowMs = performance.now()
      const stored = await commit(trx, {
        ...outcome,
        claimedAtMs: this.#claimed.claimedAtMs,
        startedAtMs: nowMs,
        finishedAtMs: nowMs,
        durable: true,
      })
      if (!stored.landed) throw lost()
      return { answer: answered, encoded: outcome, afterCommit: stored.afterCommit }
    })
    this.#committed = encoded
    await afterCommit()
    return answer
  }

  #context(policyDelayMs?: number): RunContext {
    const { row, abort } = this.#claimed
    return new RunContext(
      {
        id: row.id,
        machine: row.machine,
        version: row.version,
        step: row.step,
        attempt: row.attempt,
        reclaims: row.reclaims,
        state: this.#state,
        awaited: this.#awaited,
        inbox: this.#inbox,
        span: this.#span,
        logger: this.#resources.logger,
        children: () => new Children(this.#resources.db, row.id),
        commit: (work) => this.#commit(work),
        policyDelayMs,
      },
      abort,
    )
  }

  async #validate(): Promise<void> {
    const { row, inbox } = this.#claimed
    if (this.#machine.stateSchema !== undefined)
      this.#state = await validated(this.#machine.stateSchema, row.state, `The state of ${row.machine}`, FailureCodes.invalidState)
    if (inbox.length === 0) return
    const seen = new Map<InboxRow, unknown>()
    for (const signal of inbox) {
      const schema = this.#machine.signalSchemas[signal.name]
      const payload =
        schema === undefined
          ? signal.payload
          : await validated(schema, signal.payload, `The payload of signal ${signal.name} (id ${signal.id})`, 'invalid_signal')
      seen.set(signal, { id: signal.id, name: signal.name, payload, receivedAt: signal.inserted_at })
    }
    this.#inbox = [...seen.values()]
    this.#awaited = this.#awaitedRows.map((signal) => seen.get(signal))
  }

  async #call(step: CompiledStep): Promise<Outcome> {
    const ctx = this.#context()
    const returned = step.run(ctx as never)
    const answer =
      returned instanceof Promise ? await (step.timeoutMs === undefined ? returned : this.#withTimeout(returned, step.timeoutMs)) : returned
    return this.#checked(answer)
  }

  #checked(answer: unknown): Outcome {
    const { step, machine } = this.#claimed.row
    if (isOutcome(answer)) {
      // Another version has steps of its own.
      if (answer.step !== undefined && answer.kind !== 'continue_as' && !this.#machine.steps.has(answer.step)) {
        throw new TerminalError(`step ${step} answered ${answer.kind} to step ${answer.step}, which machine ${machine} does not have`, {
          code: FailureCodes.unknownStep,
        })
      }
      return answer
    }
    throw new TerminalError(
      `step ${step} of machine ${machine} answered ${answer === undefined ? 'nothing' : typeof answer} instead of an outcome; return ctx.next(…), ctx.done(…) or another of its outcomes`,
    )
  }

  /** The step's promise is left behind when it is late: it cannot be stopped, only told. What it answers then is not looked at. */
  async #withTimeout(running: Promise<unknown>, timeoutMs: number): Promise<unknown> {
    const late = Promise.withResolvers<never>()
    const timer = setTimeout(
      () => {
        const error = new StepTimeoutError(`step ${this.#claimed.row.step} ran longer than its timeout of ${timeoutMs} ms`)
        late.reject(error) // before the step hears of it: what it then throws is not the reason
        this.#claimed.abort.abort(error)
      },
      Math.min(timeoutMs, 2_147_483_647),
    )
    try {
      return await Promise.race([running, late.promise])
    } finally {
      clearTimeout(timer)
    }
  }

  async #onError(error: unknown, step: CompiledStep): Promise<Encoded> {
    const { row } = this.#claimed
    const terminal = error instanceof TerminalError || error instanceof NotStorableError
    const delayMs = terminal ? undefined : nextDelayMs(step.retry, row.attempt, this.#resources.random)
    if (this.#machine.onError !== undefined) {
      try {
        const decided = await this.#machine.onError(error, this.#context(delayMs) as never)
        if (isOutcome(decided)) return this.#encode(decided, error)
        if (decided !== undefined)
          throw new TerminalError(`onError of machine ${row.machine} answered ${typeof decided}; return an outcome or nothing`)
      } catch (second) {
        return this.#failure(failureOf(second, FailureCodes.stepFailed))
      }
    }
    const failure = failureOf(error, FailureCodes.stepFailed)
    this.#resources.logger.warn(
      { instance_id: row.id, machine: row.machine, step: row.step, attempt: row.attempt, err: failure, retry_in_ms: delayMs },
      'step failed',
    )
    return delayMs === undefined
      ? this.#failure(failure)
      : {
          ...this.#base(),
          kind: 'retry',
          delayMs,
          error: encodeFailure(failure),
          keepHistory: this.#machine.history !== 'off',
          inline: false,
        }
  }

  #base(): Pick<Encoded, 'instanceId' | 'claimEpoch' | 'fromStep' | 'attempt' | 'traceparent' | 'heldKey'> {
    const { row } = this.#claimed
    return {
      instanceId: row.id,
      claimEpoch: row.claim_epoch,
      fromStep: row.step,
      attempt: row.attempt,
      traceparent: row.traceparent ?? undefined,
      heldKey: row.concurrency_key ?? undefined,
    }
  }

  #failure(failure: FailureRecord): Encoded {
    return { ...this.#base(), kind: 'fail', error: encodeFailure(failure), keepHistory: this.#machine.history !== 'off', inline: false }
  }

  /** Throws what makes the outcome impossible to store: it is the step's failure, and none of its neighbours' (digest N2). */
  #encode(outcome: Outcome, cause?: unknown): Encoded {
    const { row } = this.#claimed
    const { kind } = outcome
    const what = (part: string): string => `the ${part} that step ${row.step} answered`
    const failed = kind === 'fail' || kind === 'cancel'
    const movesOn = kind === 'next' || kind === 'sleep' || kind === 'spawn' || kind === 'continue_as'
    const reason = failed
      ? failureOf(outcome.reason, kind === 'fail' ? FailureCodes.failed : FailureCodes.cancelled)
      : cause === undefined
        ? undefined
        : failureOf(cause, FailureCodes.stepFailed)
    return {
      ...this.#base(),
      kind,
      step: outcome.step,
      state: outcome.state === undefined ? undefined : storableJson(outcome.state, what('state')),
      result: kind === 'done' ? storableJson(outcome.result, what('result')) : undefined,
      error: kind === 'done' || reason === undefined ? undefined : encodeFailure(reason),
      delayMs: outcome.delayMs,
      awaits: outcome.awaits,
      timeoutMs: outcome.timeoutMs,
      presented: kind === 'await_signal' && this.#awaitedRows.length > 0 ? this.#awaitedRows.map((signal) => signal.id) : undefined,
      consumed: movesOn && this.#awaitedRows.length > 0 ? this.#awaitedRows.map((signal) => signal.id) : undefined,
      // undefined where it is the rule, so that the column's array is not sent at all
      keyChange: outcome.concurrencyKey === undefined ? undefined : true,
      concurrencyKey: outcome.concurrencyKey ?? undefined,
      rateKey: outcome.rateKey,
      rateWeight: outcome.rateWeight,
      children: outcome.children === undefined ? undefined : encodeChildren(outcome.children),
      joinCount: outcome.joinCount,
      version: outcome.version,
      discard: kind === 'done' && this.#machine.keep === 'failures' ? true : undefined,
      inline: kind === 'next' && (outcome.inline ?? this.#machine.inline),
      keepHistory: this.#machine.history === 'all' || (this.#machine.history === 'failures' && (failed || kind === 'retry')),
    }
  }
}

async function validated(schema: StandardSchemaV1, value: unknown, what: string, code: string): Promise<unknown> {
  const checked = schema['~standard'].validate(value)
  const result = checked instanceof Promise ? await checked : checked
  if (result.issues === undefined) return result.value
  const issues = result.issues.map((issue) => {
    const path = (issue.path ?? []).map((part) => String(typeof part === 'object' ? part.key : part)).join('.')
    return path === '' ? issue.message : `${path}: ${issue.message}`
  })
  throw new TerminalError(`${what} does not satisfy its schema: ${issues.join('; ')}`, { code })
}

/** Longest message or stack that is kept of a failure; the rest belongs in the log. */
const MAX_FAILURE_TEXT = 8_192

/** Errors, texts, `{ code, message }` and anything else a step may throw, as what is stored. */
function failureOf(reason: unknown, code: string): FailureRecord {
  if (reason instanceof Error) {
    const own = 'code' in reason && typeof reason.code === 'string' ? reason.code : undefined
    const known =
      reason instanceof TerminalError || reason instanceof StepTimeoutError
        ? own
        : reason instanceof NotStorableError
          ? FailureCodes.notStorable
          : undefined
    return {
      code: known ?? code,
      message: clean(reason.message || reason.name),
      ...(reason.stack === undefined ? {} : { stack: clean(reason.stack) }),
    }
  }
  if (typeof reason === 'string') return { code, message: clean(reason) }
  if (typeof reason === 'object' && reason !== null && 'message' in reason && typeof reason.message === 'string') {
    return { code: 'code' in reason && typeof reason.code === 'string' ? clean(reason.code) : code, message: clean(reason.message) }
  }
  let text: string
  try {
    text = JSON.stringify(reason) ?? String(reason)
  } catch {
    text = String(reason) // a cycle: any text is better than none
  }
  return { code, message: clean(`a step threw or answered: ${text}`) }
}

// What a step throws may hold NULs or half a surrogate pair; the failure itself must always be storable.
const clean = (text: string): string => text.slice(0, MAX_FAILURE_TEXT).replaceAll('\u0000', '\uFFFD').toWellFormed()
const encodeFailure = (failure: FailureRecord): string => storableJson(failure, 'the failure')

/** The outcome of a run whose own outcome the database refused when it was staged alone. */
export function rejectedOutcome(outcome: RunOutcome, error: unknown): RunOutcome {
  const message = error instanceof Error ? error.message : String(error)
  return {
    instanceId: outcome.instanceId as InstanceId,
    claimEpoch: outcome.claimEpoch,
    kind: 'fail',
    fromStep: outcome.fromStep,
    attempt: outcome.attempt,
    error: encodeFailure({
      code: FailureCodes.notStorable,
      message: clean(`The database refused the outcome of step ${outcome.fromStep} (${outcome.kind}): ${message}`),
    }),
    keepHistory: true,
    traceparent: outcome.traceparent,
    claimedAtMs: outcome.claimedAtMs,
    startedAtMs: outcome.startedAtMs,
    finishedAtMs: outcome.finishedAtMs,
    heldKey: outcome.heldKey,
    inline: false,
    durable: false,
  }
}
