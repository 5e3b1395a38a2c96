import { AssertionError } from 'node:assert'
import { isDeepStrictEqual } from 'node:util'
import { type Enqueue, type EnqueueOptions, type ScheduleDefinition, type SignalOptions, TransactionalClient } from '@holdfast/client'
import {
  type Duration,
  durationMs,
  type InstanceId,
  type InstanceStatus,
  type MachineRef,
  type ProjectId,
  type ResultOf,
  type SignalsOf,
  type StateOf,
  storableJson,
} from '@holdfast/contracts'
import { CronClock, type Logger, type Machine } from '@holdfast/engine'
import {
  cancelInstances,
  declareMachines,
  deleteSchedule,
  endInstances,
  findProject,
  getHistory,
  getInstances,
  getSchedule,
  type InboxRow,
  type InstanceRow,
  listInstances,
  loadInbox,
  putGate,
  putRateLimit,
  putSchedule,
  releaseRateLine,
  retryInstances,
  type ScheduleRow,
  setQueuePaused,
  type TransitionRow,
} from '@holdfast/queries'
import { connect, type Db, engineSessionSettings } from '@holdfast/schema'
import { letPass } from '@holdfast/testbed/time-travel'
import { CompiledQuery, sql } from 'kysely'
import { Drain, type Drained, type DrainOptions } from './drain.ts'
import { durationText } from './duration-text.ts'
import { type ReportedRow, reportOf } from './instance-report.ts'
import { Processes } from './processes.ts'
import { createDatabase, PROJECT, type TestDatabase } from './server.ts'
import { machineName } from './step-record.ts'

export interface TestEngineOptions {
  /** What can run here: each version of each machine, children's too. An instance of another one waits for ever. */
  readonly machines: Iterable<Machine>
  /** As HOLDFAST_FLUSH of the deployment: `direct` is what `inline` steps need. Default `staged`. */
  readonly flush?: 'staged' | 'direct'
  /** Steps of one queue that run at once. Default 1: one after the other in the order of their queue, so that a test does the same each time. */
  readonly concurrency?: number
  /**
   * A PostgreSQL (15–18) to make the database on, as a superuser. Default: that of HOLDFAST_TEST_DATABASE_URL, else an embedded one, which starts with the first
   * engine of the process and ends with the process.
   */
  readonly databaseUrl?: string
  /** Where the engine and `ctx.log` write to. Default: nowhere. */
  readonly logger?: Logger
}

/** The id of an instance; the compiler knows of which machine, so that its signals and its result are checked. */
export type InstanceOf<Machine extends MachineRef> = InstanceId & { readonly $machine?: Machine }

type AnyMachine = MachineRef<unknown, unknown, Record<string, unknown>>

/** An id, or the correlation key that it was enqueued with: the newest instance that has it. */
export type Target<Machine extends MachineRef = AnyMachine> = InstanceOf<Machine> | string | { readonly correlationKey: string }

type Named = string | { readonly correlationKey: string }

/** The row of an instance. Times are moved by time travel (see docs/testing.md). */
export type InstanceState<Machine extends MachineRef = AnyMachine> = Omit<InstanceRow, 'state' | 'result'> & {
  readonly state: StateOf<Machine>
  readonly result: ResultOf<Machine> | null
}

export interface InstanceFilter {
  readonly machine?: MachineRef | string
  readonly status?: InstanceStatus
  readonly queue?: string
  readonly parentId?: string
}

export interface RateLimitOptions {
  /** Tokens every `period`. */
  readonly rate: number
  /** Default 1 second. */
  readonly period?: Duration
  /** Tokens that may be taken at once. Default: `rate`, at least 1. */
  readonly burst?: number
}

const SILENT: Logger = { debug() {}, info() {}, warn() {}, error() {} }
const PAGE = 500
const HISTORY = 1_000

/**
 * An engine to test machines with, on a database of its own: nothing happens unless the test says so. Close it, or declare it with `await using`.
 *
 * @throws Error when no PostgreSQL could be started or reached; TypeError for two machines of one name and version.
 */
export async function testEngine(options: TestEngineOptions): Promise<TestEngine> {
  const machines = [...options.machines]
  const seen = new Set<string>()
  for (const machine of machines) {
    if (seen.has(keyOf(machine)))
      throw new TypeError(
        `two machines are named ${machine.name} with version ${machine.version}; give one of them another version or name`,
      )
    seen.add(keyOf(machine))
  }
  const { concurrency = 1 } = options
  if (!Number.isInteger(concurrency) || concurrency < 1)
    throw new TypeError(`concurrency is a whole number of at least 1, not ${concurrency}`)
  const database = await createDatabase(options.databaseUrl)
  const db = connect({
    connectionString: database.url,
    max: 2,
    applicationName: 'holdfast-testing',
    settings: engineSessionSettings,
    onIdleError: () => {},
  })
  try {
    const [project] = await findProject(db, { name: PROJECT })
    if (project === undefined) throw new Error(`the template database has no project ${PROJECT}`)
    if (machines.length > 0)
      await declareMachines(db, {
        machines: machines.map(({ name, version, queue, maxReclaims }) => ({ name, version, queue, maxReclaims })),
      })
    return new TestEngine({ options: { ...options, machines, concurrency }, database, db, projectId: project.id })
  } catch (error) {
    await db.destroy()
    await database.drop()
    throw error
  }
}

const keyOf = ({ name, version }: { name: string; version: number }): string => `${name}/${version}`

interface Parts {
  readonly options: TestEngineOptions & { readonly machines: readonly Machine[]; readonly concurrency: number }
  readonly database: TestDatabase
  readonly db: Db
  readonly projectId: ProjectId
}

/** Made by {@link testEngine}. */
export class TestEngine implements AsyncDisposable {
  /** The test's database, as superuser: for the tables that steps write to in `ctx.commit`, or a client of your own. */
  readonly databaseUrl: string
  readonly #database: TestDatabase
  readonly #db: Db
  readonly #projectId: ProjectId
  readonly #flush: 'staged' | 'direct'
  readonly #machines: ReadonlySet<string>
  readonly #processes: Processes
  readonly #client = new TransactionalClient({ project: PROJECT })
  #travelledMs = 0
  #busy: string | undefined
  #closing: Promise<void> | undefined

  constructor({ options, database, db, projectId }: Parts) {
    this.databaseUrl = database.url
    this.#database = database
    this.#db = db
    this.#projectId = projectId
    this.#flush = options.flush ?? 'staged'
    this.#machines = new Set(options.machines.map(keyOf))
    const { machines, concurrency, logger = SILENT } = options
    this.#processes = new Processes({ url: database.url, machines, flush: this.#flush, concurrency, logger }, db)
  }

  // What a client does ------------------------------------------------------------------------------------------------------------

  /** Inserts an instance and answers its id; when its correlation key is occupied, the occupant's. Nothing runs before {@link drain}. */
  async enqueue<Machine extends MachineRef>(
    machine: Machine | string,
    state?: StateOf<Machine>,
    options: EnqueueOptions = {},
  ): Promise<InstanceOf<Machine>> {
    this.#requireKnown(machine, options.version)
    const { id } = await this.#db.transaction().execute((trx) => this.#client.enqueue(trx, machine, state, options))
    return id as InstanceOf<Machine>
  }

  /** Many at once; ids in the same order. */
  async enqueueMany<Machine extends MachineRef>(instances: readonly Enqueue<Machine>[]): Promise<InstanceOf<Machine>[]> {
    for (const { machine, version } of instances) this.#requireKnown(machine, version)
    const { ids } = await this.#db.transaction().execute((trx) => this.#client.enqueueMany(trx, instances))
    return [...ids] as InstanceOf<Machine>[]
  }

  /** Puts a signal into the inbox of a live instance. Throws HoldfastError `not_found` when there is none, as in production. */
  async signal<Machine extends MachineRef = AnyMachine, Name extends keyof SignalsOf<Machine> & string = keyof SignalsOf<Machine> & string>(
    target: Target<Machine>,
    name: Name,
    payload?: SignalsOf<Machine>[Name],
    options: SignalOptions = {},
  ): Promise<{ duplicate: boolean }> {
    const to = typeof target === 'object' ? target : { id: target }
    return this.#db.transaction().execute((trx) => this.#client.signal<AnyMachine>(trx, to as { id: string }, name, payload, options))
  }

  /** Cancels a live instance, and its children with the next drain. An instance that has ended stays as it is. */
  async cancel(target: Named, reason?: string): Promise<void> {
    const { id } = await this.instance(target)
    await endInstances(this.#db, (trx) => cancelInstances(trx, { ids: [id], projectId: this.#projectId, reason: reason ?? null }))
  }

  /** Makes a failed or cancelled instance runnable again, at the step where it ended. Throws when it is neither. */
  async retry(target: Named): Promise<void> {
    const instance = await this.instance(target)
    const [retried] = await retryInstances(this.#db, { ids: [instance.id], projectId: this.#projectId })
    if (retried === undefined)
      throw new Error(
        `instance ${instance.id} is ${instance.status}; only one that has failed or was cancelled, and whose correlation key is free, can be retried`,
      )
  }

  /** Declares or changes a rate limit of the project, as PUT /v1/limits/rate/NAME does. */
  async putRateLimit(name: string, { rate, period = '1 second', burst = Math.max(1, rate) }: RateLimitOptions): Promise<void> {
    await putRateLimit(this.#db, { projectId: this.#projectId, name, rate, periodMs: durationMs(period), burst, shards: 1 })
    await releaseRateLine(this.#db, { projectId: this.#projectId, name })
  }

  /** Declares or changes a gate of the project: so many steps at a time have a concurrency key `name` or `name:partition`. */
  async putGate(name: string, capacity: number): Promise<void> {
    await putGate(this.#db, { projectId: this.#projectId, name, capacity })
  }

  /**
   * Defines or replaces a cron schedule, as PUT /v1/schedules/NAME does; its next tick is the first one after {@link now}. Answers the schedule, and throws InvalidCronError
   * for a cron text or time zone that means nothing.
   */
  async putSchedule<Machine extends MachineRef>(name: string, definition: ScheduleDefinition<Machine>): Promise<ScheduleRow> {
    const {
      cron,
      timezone = 'UTC',
      machine,
      input = {},
      queue,
      priority = 0,
      concurrencyKey,
      catchUp = 'none',
      overlap = 'allow',
      paused,
    } = definition
    const version = definition.version ?? (typeof machine === 'string' ? undefined : machine.version)
    this.#requireKnown(machine, version)
    const nextAt = new CronClock(cron, timezone).after(this.now())
    if (nextAt === undefined) throw new TypeError(`cron: ${JSON.stringify(cron)} never comes`)
    const [row] = await putSchedule(this.#db, {
      projectId: this.#projectId,
      name,
      cron,
      timezone,
      machine: machineName(machine),
      version,
      input: storableJson(input, 'the input'),
      queue,
      priority,
      concurrencyKey,
      catchUp,
      overlap,
      nextAt: paused === true ? undefined : nextAt,
    })
    if (row === undefined) throw new Error('a schedule was not stored')
    return row
  }
  async deleteSchedule(name: string): Promise<void> {
    await deleteSchedule(this.#db, { projectId: this.#projectId, name })
  }

  async pauseQueue(queue: string): Promise<void> {
    await setQueuePaused(this.#db, { queue, paused: true })
  }
  async resumeQueue(queue: string): Promise<void> {
    await setQueuePaused(this.#db, { queue, paused: false })
  }

  // What the engine and time do -----------------------------------------------------------------------------------------------------

  /**
   * Runs the engine until nothing can move: claims, steps, outcomes and all that follows them are the real ones, on the real database. Without `travel` no time passes, so
   * that delays and deadlines are still ahead.
   *
   * @throws Error after `maxSteps`, naming the instances that go round; and when `crashAt` was never reached.
   */
  async drain(options: DrainOptions = {}): Promise<Drained> {
    return this.#alone('drain()', async () => {
      const engine = {
        db: this.#db,
        processes: this.#processes,
        flush: this.#flush,
        travelledMs: () => this.#travelledMs,
        letPass: (ms: number) => this.#letPass(ms),
      }
      return new Drain(engine, options).run()
    })
  }

  /** Lets time pass and does nothing else: what has become due meanwhile happens at the next drain. */
  async advance(duration: Duration): Promise<void> {
    await this.#alone('advance()', () => this.#letPass(durationMs(duration)))
  }

  /** How much time has been made to pass since the engine was made. The clocks do not know of it: see docs/testing.md for steps that read them. */
  get travelledMs(): number {
    return this.#travelledMs
  }

  /** What the calendar shows after all that time: the present of the test's cron schedules. */
  now(): Date {
    return new Date(Date.now() + this.#travelledMs)
  }

  // What a test looks at ------------------------------------------------------------------------------------------------------------

  /** Throws when there is none. */
  async instance<Machine extends MachineRef = AnyMachine>(target: Target<Machine>): Promise<InstanceState<Machine>> {
    const found =
      typeof target === 'object'
        ? await listInstances(this.#db, { projectId: this.#projectId, correlationKey: target.correlationKey, limit: 1 })
        : await getInstances(this.#db, { projectId: this.#projectId, ids: [target as InstanceId] })
    const [row] = found
    if (row === undefined) {
      const name = typeof target === 'object' ? `with the correlation key ${target.correlationKey}` : target
      throw new AssertionError({
        message: `there is no instance ${name}. (A machine with keep: 'failures' deletes its instances when they are done.)`,
      })
    }
    return row as InstanceState<Machine>
  }

  /** All that match, oldest first. */
  async instances(filter: InstanceFilter = {}): Promise<InstanceState[]> {
    const { machine, status, queue, parentId } = filter
    const found: InstanceRow[] = []
    for (;;) {
      const page = await listInstances(this.#db, {
        projectId: this.#projectId,
        machine: machine === undefined ? undefined : machineName(machine),
        status,
        queue,
        parentId: parentId as InstanceId | undefined,
        after: found.at(-1)?.id,
        limit: PAGE,
      })
      found.push(...page)
      if (page.length < PAGE) return found.reverse() as InstanceState[]
    }
  }

  /** What an instance has done, oldest first: one entry for each outcome that was applied. */
  async history(target: Named): Promise<TransitionRow[]> {
    const { id } = await this.instance(target)
    return getHistory(this.#db, { id, limit: HISTORY })
  }

  /** A cron schedule with its next and last ticks, which are instants of {@link now}'s calendar. Throws when there is none. */
  async schedule(name: string): Promise<ScheduleRow> {
    const [row] = await getSchedule(this.#db, { projectId: this.#projectId, name })
    if (row === undefined) throw new AssertionError({ message: `there is no schedule ${name}` })
    return row
  }

  /** Signals that have arrived and that no step has moved on from, oldest first. */
  async inbox(target: Named): Promise<InboxRow[]> {
    const { id } = await this.instance(target)
    return loadInbox(this.#db, { ids: [id] })
  }

  /** Any SQL on the test's database, with `$1`, `$2`, … for `values`: to make the tables that steps write to, and to look into them. */
  async query<Row = Record<string, unknown>>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
    return (await this.#db.executeQuery<Row>(CompiledQuery.raw(text, [...values]))).rows
  }

  // Assertions: each answers the instance, and throws an AssertionError that shows it otherwise ----------------------------------------------

  /** It has ended well; with `result`, with that result. */
  async assertDone<Machine extends MachineRef = AnyMachine>(
    target: Target<Machine>,
    ...[result]: [result?: NoInfer<ResultOf<Machine>>]
  ): Promise<InstanceState<Machine>> {
    const instance = await this.assertStatus(target, 'done')
    if (result === undefined) return instance
    const expected: unknown = JSON.parse(JSON.stringify(result))
    if (!isDeepStrictEqual(instance.result, expected)) await this.#fail(instance, 'is done with another result', instance.result, expected)
    return instance
  }

  /** It has failed; with `reason`, for that: a text is the error's code or its whole message, a pattern is looked for in `code: message`. */
  async assertFailed<Machine extends MachineRef = AnyMachine>(
    target: Target<Machine>,
    reason?: string | RegExp,
  ): Promise<InstanceState<Machine>> {
    const instance = await this.assertStatus(target, 'failed')
    const { code = '', message = '' } = instance.error ?? {}
    const matches =
      reason === undefined || (typeof reason === 'string' ? reason === code || reason === message : reason.test(`${code}: ${message}`))
    if (!matches) await this.#fail(instance, `failed for another reason than ${String(reason)}`, `${code}: ${message}`, reason)
    return instance
  }

  /** It is parked on a signal; with `names`, these are among those that it waits for. */
  async assertAwaiting<Machine extends MachineRef = AnyMachine>(
    target: Target<Machine>,
    names?: (keyof SignalsOf<Machine> & string) | readonly (keyof SignalsOf<Machine> & string)[],
  ): Promise<InstanceState<Machine>> {
    const instance = await this.assertStatus(target, 'awaiting_signal')
    const wanted: readonly string[] = names === undefined ? [] : typeof names === 'string' ? [names] : names
    const missing = wanted.filter((name) => instance.awaits?.includes(name) !== true)
    if (missing.length > 0) await this.#fail(instance, `does not wait for ${missing.join(', ')}`, instance.awaits, wanted)
    return instance
  }

  async assertStatus<Machine extends MachineRef = AnyMachine>(
    target: Target<Machine>,
    status: InstanceStatus,
  ): Promise<InstanceState<Machine>> {
    const instance = await this.instance<Machine>(target)
    if (instance.status !== status) await this.#fail(instance, `is ${instance.status} and not ${status}`, instance.status, status)
    return instance
  }

  // The end -----------------------------------------------------------------------------------------------------------------------

  /** Closes its connections and drops its database. May be called again. */
  close(): Promise<void> {
    this.#closing ??= (async () => {
      await this.#processes.close()
      await this.#db.destroy()
      await this.#database.drop()
    })()
    return this.#closing
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  async #letPass(ms: number): Promise<void> {
    await letPass(this.#db, ms)
    this.#travelledMs += ms
  }

  #requireKnown(machine: MachineRef | string, version?: number): void {
    const name = machineName(machine)
    const wanted = version ?? (typeof machine === 'string' ? undefined : machine.version)
    if (wanted === undefined ? [...this.#machines].some((key) => key.startsWith(`${name}/`)) : this.#machines.has(`${name}/${wanted}`))
      return
    const known = [...this.#machines].map((key) => key.replace('/', ' version ')).join(', ')
    throw new TypeError(
      `testEngine() was not given machine ${name}${wanted === undefined ? '' : ` version ${wanted}`}, so nobody would run it; it has ${known || 'none'}`,
    )
  }

  /** Two drains at once would share their processes and their time. */
  async #alone<Answer>(what: string, work: () => Promise<Answer>): Promise<Answer> {
    if (this.#closing !== undefined) throw new Error(`${what} on a test engine that is closed`)
    if (this.#busy !== undefined) throw new Error(`${what} while ${this.#busy} is under way; await that first`)
    this.#busy = what
    try {
      return await work()
    } finally {
      this.#busy = undefined
    }
  }

  async #fail(row: ReportedRow, what: string, actual: unknown, expected: unknown): Promise<never> {
    const [{ rows }, inbox, history] = await Promise.all([
      sql<{ now: Date }>`SELECT now() AS now`.execute(this.#db),
      loadInbox(this.#db, { ids: [row.id] }),
      getHistory(this.#db, { id: row.id, limit: HISTORY }),
    ])
    const [clock] = rows
    const travelled = this.#travelledMs === 0 ? '' : `, after ${durationText(this.travelledMs)} of time travel`
    const report = reportOf({ row, inbox, history, known: this.#machines, now: clock?.now ?? new Date() })
    throw new AssertionError({
      message: `instance ${row.id} of ${row.machine} version ${row.version} ${what}${travelled}\n${report}`,
      actual,
      expected,
      operator: 'holdfast',
    })
  }
}
