import { type Duration, durationMs, type JsonValue, Limits } from '@holdfast/contracts'
import type { StandardSchemaV1 } from '@standard-schema/spec'
import type { Outcome } from './outcome.ts'
import { type ResolvedRetryPolicy, type RetryPolicy, resolveRetryPolicy } from './retry-policy.ts'
import type { ErrorContext, JobContext, StepContext } from './step-context.ts'

type Schemas = Readonly<Record<string, StandardSchemaV1>>
type MaybePromise<T> = T | Promise<T>

/** Payloads by signal name. */
export type PayloadsOf<Signals extends Schemas> = { [Name in keyof Signals]: StandardSchemaV1.InferOutput<Signals[Name]> }

/** A step is its function, or its function with settings of its own. `Answer` is what the function returns. */
export type StepDefinition<State, Payloads, Steps extends string, Answer> =
  | StepRun<State, Payloads, Steps, Answer>
  | {
      readonly run: StepRun<State, Payloads, Steps, Answer>
      /** The step is told through `ctx.signal`, counted as failed, and loses its claim soon after. Default: none. */
      readonly timeout?: Duration
      /** Default: the machine's. */
      readonly retry?: RetryPolicy
    }
type StepRun<State, Payloads, Steps extends string, Answer> = (ctx: StepContext<State, Payloads, Steps>) => MaybePromise<Answer>

/** What the `done` outcomes among the answers carry. */
type ResultOf<Answer> = Answer extends Outcome<infer Result> ? Result : never

/** Settings that machines and jobs share. */
export interface MachineSettings {
  /** An instance finishes on the version it started on. Default 1. */
  readonly version?: number
  /** Where instances wait unless the enqueuer says otherwise. Default `default`. */
  readonly queue?: string
  /** What happens when a step throws and `onError` does not decide. */
  readonly retry?: RetryPolicy
  /** How often in a row a step may lose its claim (its process died, or it outran its lease) before the instance fails with `crash_loop`. Default 5. */
  readonly maxReclaims?: number
  /** Which outcomes are recorded in the history. Default `all`. */
  readonly history?: 'all' | 'failures' | 'off'
  /**
   * `failures`: an instance that is done is deleted instead of being kept until its retention, its result with it: a queue's job at a queue's price. Children and
   * instances whose correlation key stays occupied when done are kept. Default `all`.
   */
  readonly keep?: 'all' | 'failures'
  /** Whether `ctx.next` goes on inline where it does not say so itself. Default false. */
  readonly inline?: boolean
}

export interface MachineDefinition<
  StateSchema extends StandardSchemaV1,
  Signals extends Schemas,
  Steps extends string,
  Answer extends Outcome<Result>,
  Result,
> extends MachineSettings {
  /** Any Standard Schema; checked each time a step is given the state. Default: any JSON. */
  readonly state?: StateSchema
  /** Names and payload schemas of the signals that its steps wait for. */
  readonly signals?: Signals
  /** What the machine ends with. Only its type is used; needed where several steps end it with results of different shapes. */
  readonly result?: StandardSchemaV1<unknown, Result>
  /** By name; `start` is where an instance begins. */
  readonly steps: {
    readonly [Step in Steps]: StepDefinition<StandardSchemaV1.InferOutput<StateSchema>, PayloadsOf<Signals>, Steps, Answer>
  }
  /** Called when a step throws, times out or answers something that cannot be stored. Answer an outcome, or nothing for the retry policy. */
  readonly onError?: (
    error: unknown,
    ctx: ErrorContext<StandardSchemaV1.InferOutput<StateSchema>, PayloadsOf<Signals>, NoInfer<Steps>>,
  ) => MaybePromise<Outcome<unknown> | undefined>
}

export interface CompiledStep {
  readonly run: (ctx: StepContext<never, never, never>) => MaybePromise<unknown>
  readonly timeoutMs: number | undefined
  readonly retry: ResolvedRetryPolicy
}

/** What `machine()` and `job()` answer: what a scheduler runs and what a client is typed by. */
export interface Machine<State = unknown, Payloads = unknown, Result = unknown> {
  readonly name: string
  readonly version: number
  readonly queue: string
  readonly maxReclaims: number
  readonly history: 'all' | 'failures' | 'off'
  readonly keep: 'all' | 'failures'
  readonly inline: boolean
  readonly stateSchema: StandardSchemaV1 | undefined
  readonly signalSchemas: Schemas
  readonly steps: ReadonlyMap<string, CompiledStep>
  readonly onError: ((error: unknown, ctx: ErrorContext<never, never, never>) => MaybePromise<unknown>) | undefined
  /** Never set: carries types to `@holdfast/client`. */
  readonly $types?: { readonly state: State; readonly result: Result; readonly signals: Payloads }
}

/**
 * Defines a machine: named steps, each of which answers what comes next. Step names, signal names and payloads, state and result are typed
 * from this one place; a step name that does not exist does not compile.
 *
 * Throws a TypeError for settings that cannot work (a version below 1, no `start` step, a name longer than 200 characters).
 */
export function machine<
  Steps extends string,
  Answer extends Outcome<Result>,
  StateSchema extends StandardSchemaV1 = StandardSchemaV1<JsonValue, JsonValue>,
  Signals extends Schemas = Record<never, never>,
  Result = unknown,
>(
  name: string,
  definition: MachineDefinition<StateSchema, Signals, Steps, Answer, Result>,
): Machine<StandardSchemaV1.InferOutput<StateSchema>, PayloadsOf<Signals>, unknown extends Result ? ResultOf<Answer> : Result> {
  const retry = resolveRetryPolicy(definition.retry)
  const steps = new Map<string, CompiledStep>()
  for (const [step, given] of Object.entries(definition.steps as unknown as Record<string, StepDefinition<never, never, never, unknown>>)) {
    const {
      run,
      timeout,
      retry: own,
    }: { run: unknown; timeout?: Duration; retry?: RetryPolicy } = typeof given === 'function' ? { run: given } : given
    requireName('step', step)
    if (typeof run !== 'function') throw new TypeError(`step ${step} of machine ${name} has no function`)
    steps.set(step, {
      run: run as CompiledStep['run'],
      timeoutMs: timeout === undefined ? undefined : durationMs(timeout),
      retry: own === undefined ? retry : resolveRetryPolicy({ ...definition.retry, ...own }),
    })
  }
  if (!steps.has('start')) throw new TypeError(`machine ${name} has no step named start, where instances begin`)
  for (const signal of Object.keys(definition.signals ?? {})) requireName('signal', signal)
  return {
    ...settingsOf(name, definition),
    stateSchema: definition.state,
    signalSchemas: definition.signals ?? {},
    steps,
    onError: definition.onError as Machine['onError'],
  }
}

export interface JobDefinition<InputSchema extends StandardSchemaV1, Result> extends MachineSettings {
  /** Any Standard Schema; checked before each run. Default: any JSON. */
  readonly input?: InputSchema
  /** See a step's `timeout`. */
  readonly timeout?: Duration
  /** Throw to fail and be retried by the policy; throw {@link TerminalError} to fail for good; the return value is the result. */
  readonly run: (input: StandardSchemaV1.InferOutput<InputSchema>, ctx: JobContext) => MaybePromise<Result>
}

/** A machine of one step: the queue's job. */
export function job<InputSchema extends StandardSchemaV1 = StandardSchemaV1<JsonValue, JsonValue>, Result = unknown>(
  name: string,
  definition: JobDefinition<InputSchema, Result>,
): Machine<StandardSchemaV1.InferOutput<InputSchema>, Record<never, never>, Result> {
  if (typeof definition.run !== 'function') throw new TypeError(`job ${name} has no run function`)
  const step: CompiledStep = {
    run: (ctx) => {
      const typed = ctx as unknown as StepContext<StandardSchemaV1.InferOutput<InputSchema>, Record<never, never>, 'start'>
      const returned = definition.run(typed.state, typed)
      // A job's return value is its result; null stands for nothing, because undefined has no JSON form.
      return returned instanceof Promise ? returned.then((result) => typed.done(result ?? null)) : typed.done(returned ?? null)
    },
    timeoutMs: definition.timeout === undefined ? undefined : durationMs(definition.timeout),
    retry: resolveRetryPolicy(definition.retry),
  }
  return {
    ...settingsOf(name, definition),
    stateSchema: definition.input,
    signalSchemas: {},
    steps: new Map([['start', step]]),
    onError: undefined,
  }
}

function settingsOf(
  name: string,
  settings: MachineSettings,
): Pick<Machine, 'name' | 'version' | 'queue' | 'maxReclaims' | 'history' | 'keep' | 'inline'> {
  requireName('machine', name)
  const { version = 1, queue = 'default', maxReclaims = 5, history = 'all', keep = 'all', inline = false } = settings
  if (!Number.isInteger(version) || version < 1)
    throw new TypeError(`the version of machine ${name} must be a whole number of at least 1, not ${version}`)
  if (!Number.isInteger(maxReclaims) || maxReclaims < 0)
    throw new TypeError(`maxReclaims of machine ${name} must be a whole number of at least 0`)
  requireName('queue', queue)
  return { name, version, queue, maxReclaims, history, keep, inline }
}

function requireName(what: string, name: string): void {
  if (typeof name !== 'string' || name.length === 0 || name.length > Limits.nameLength) {
    throw new TypeError(`the name of a ${what} has 1 to ${Limits.nameLength} characters; got ${JSON.stringify(name)}`)
  }
}
