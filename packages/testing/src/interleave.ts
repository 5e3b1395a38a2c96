import { setTimeout as sleep } from 'node:timers/promises'
import { connect, DatabaseRoles, type Db, engineSessionSettings, type Role } from '@holdfast/schema'
import { CompiledQuery, sql } from 'kysely'
import type { TestDatabase } from './index.ts'

/** One of the sessions that meet: a connection of its own, on which its steps run one after the other. */
export interface Session {
  readonly db: Db
  begin(): Promise<void>
  commit(): Promise<void>
  rollback(): Promise<void>
}

export type Step<Context> = (session: Session, context: Context) => Promise<unknown>

export interface Interleaving<Context> {
  readonly database: TestDatabase
  /** Makes what the steps meet on, before each order, in empty tables. */
  readonly setup: (db: Db) => Promise<Context>
  /** Two or three sessions, each a list of named steps that keep their order. `role`: the app whose database role the session has; default superuser. */
  readonly sessions: Readonly<Record<string, { readonly role?: Role; readonly steps: Readonly<Record<string, Step<Context>>> }>>
  /** Looks at the end of each order; what it throws fails that order. */
  readonly check: (db: Db, context: Context, outcome: Outcome) => Promise<void>
  /** Runs this order alone, as a failure names it: `park.begin, deliver.send, park.commit`. */
  readonly only?: string
}

/** What each step did in one order. */
export class Outcome {
  readonly #settled = new Map<string, PromiseSettledResult<unknown>>()
  /** The order as it was carried out; a step that had to wait is marked. */
  readonly trace: string[] = []

  record(step: string, settled: PromiseSettledResult<unknown>): void {
    this.#settled.set(step, settled)
  }
  /** The value of a step, as `deliver.send`. Throws what the step threw. */
  value<Value>(step: string): Value {
    const settled = this.#settled.get(step)
    if (settled === undefined) throw new Error(`step ${step} has not run`)
    if (settled.status === 'rejected') throw settled.reason
    return settled.value as Value
  }
  error(step: string): { code?: string; constraint?: string; message: string } | undefined {
    const settled = this.#settled.get(step)
    return settled?.status === 'rejected' ? (settled.reason as { code?: string; constraint?: string; message: string }) : undefined
  }
  /** Steps that threw, with their SQLSTATE. */
  get errors(): string[] {
    return [...this.#settled].flatMap(([step, settled]) => {
      if (settled.status !== 'rejected') return []
      const { code, message } = settled.reason as { code?: string; message: string }
      return [`${step}: ${code ?? message}`]
    })
  }
}

export interface Report {
  /** Orders that were run: all there are. */
  readonly orders: number
  /** Orders in which some session had to wait for another. */
  readonly withWaits: number
  readonly failures: readonly { readonly order: string; readonly trace: string; readonly error: unknown }[]
}

const LOOK_EVERY_MS = 2
/** A session that is waiting for another's lock at two looks in a row is blocked and not just slow. */
const LOOKS = 2
const HANG_MS = 10_000

/** Runs every order of the steps and fails with the first orders whose check throws. */
export async function interleave<Context>(given: Interleaving<Context>): Promise<Report> {
  const report = await runOrders(given)
  if (report.failures.length > 0) {
    const shown = report.failures
      .slice(0, 3)
      .map(
        ({ order, trace, error }) =>
          `  ${trace}\n    ${error instanceof Error ? error.message : String(error)}\n    again: only: '${order}'`,
      )
    throw new Error(`${report.failures.length} of ${report.orders} orders failed:\n${shown.join('\n')}`, {
      cause: report.failures[0]?.error,
    })
  }
  return report
}

/** The other half of a race test: with its lock or its CASE taken out, some order must fail, or the test shows nothing. Answers the report. */
export async function expectInterleavingToFail<Context>(given: Interleaving<Context>): Promise<Report> {
  const report = await runOrders(given)
  if (report.failures.length === 0)
    throw new Error(
      `all ${report.orders} orders passed without what was taken out: either it is not needed, or the check does not look at what it protects`,
    )
  return report
}

async function runOrders<Context>(given: Interleaving<Context>): Promise<Report> {
  await using opened = await OpenSessions.open(given)
  const orders = given.only === undefined ? [...ordersOf(given.sessions)] : [given.only.split(/,\s*/)]
  let withWaits = 0
  const failures: { order: string; trace: string; error: unknown }[] = []
  for (const order of orders) {
    await emptyTables(opened.monitor)
    const context = await given.setup(opened.monitor)
    const outcome = new Outcome()
    try {
      await new OrderRun(given, opened, context, outcome).run(order)
      await given.check(opened.monitor, context, outcome)
    } catch (error) {
      failures.push({ order: order.join(', '), trace: outcome.trace.join(' → '), error })
    }
    if (outcome.trace.some((step) => step.endsWith('(waits)'))) withWaits += 1
    await opened.reset()
  }
  return { orders: orders.length, withWaits, failures }
}

/** Every way to merge the sessions' lists that keeps the order within each. */
function* ordersOf(sessions: Interleaving<never>['sessions'] | Interleaving<unknown>['sessions']): Generator<string[]> {
  const lists = Object.entries(sessions).map(([name, { steps }]) => Object.keys(steps).map((step) => `${name}.${step}`))
  yield* merge(lists)
}
function* merge(lists: readonly (readonly string[])[]): Generator<string[]> {
  if (lists.every((list) => list.length === 0)) yield []
  for (const [index, [head, ...rest]] of lists.entries()) {
    if (head === undefined) continue
    for (const tail of merge(lists.with(index, rest))) yield [head, ...tail]
  }
}

interface OpenSession extends Session {
  readonly pid: number
}

class OpenSessions implements AsyncDisposable {
  readonly monitor: Db
  readonly byName: ReadonlyMap<string, OpenSession>
  private constructor(monitor: Db, byName: ReadonlyMap<string, OpenSession>) {
    this.monitor = monitor
    this.byName = byName
  }

  static async open({
    database,
    sessions,
  }: Pick<Interleaving<never>, 'database' | 'sessions'> | Pick<Interleaving<unknown>, 'database' | 'sessions'>): Promise<OpenSessions> {
    const byName = new Map<string, OpenSession>()
    for (const [name, { role }] of Object.entries(sessions)) {
      const db = connect({
        connectionString: database.url,
        max: 1, // one connection: a transaction that one step begins is the one the next step is in
        role: role === undefined ? undefined : DatabaseRoles[role],
        settings: engineSessionSettings,
      })
      const { rows } = await sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`.execute(db)
      byName.set(name, {
        db,
        pid: rows[0]?.pid ?? -1,
        begin: async () => void (await sql`BEGIN`.execute(db)),
        commit: async () => void (await sql`COMMIT`.execute(db)),
        rollback: async () => void (await sql`ROLLBACK`.execute(db)),
      })
    }
    return new OpenSessions(connect({ connectionString: database.url, max: 2, settings: engineSessionSettings }), byName)
  }

  /** Ends whatever an order has left open. */
  async reset(): Promise<void> {
    for (const { db } of this.byName.values()) await sql`ROLLBACK`.execute(db)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.monitor, ...[...this.byName.values()].map(({ db }) => db)].map((db) => db.destroy()))
  }
}

interface Waiting {
  readonly name: string
  readonly running: Promise<void>
  done: boolean
}

/** One order: a step of a session that is blocked waits its turn, as in PostgreSQL's own isolation tester; the others go on. */
class OrderRun<Context> {
  readonly #given: Interleaving<Context>
  readonly #opened: OpenSessions
  readonly #context: Context
  readonly #outcome: Outcome
  readonly #blocked = new Map<string, Waiting>()
  readonly #deferred = new Map<string, string[]>()

  constructor(given: Interleaving<Context>, opened: OpenSessions, context: Context, outcome: Outcome) {
    this.#given = given
    this.#opened = opened
    this.#context = context
    this.#outcome = outcome
  }

  async run(order: readonly string[]): Promise<void> {
    for (const step of order) {
      const session = sessionOf(step)
      if (this.#blocked.has(session)) this.#deferred.set(session, [...(this.#deferred.get(session) ?? []), step])
      else await this.#start(step)
      await this.#resume()
    }
    const untilMs = performance.now() + HANG_MS
    while (this.#blocked.size > 0) {
      // The rest can only be waiting for one another: PostgreSQL finds the deadlock after deadlock_timeout and ends one of them.
      await sleep(LOOK_EVERY_MS)
      await this.#resume()
      if (performance.now() > untilMs)
        throw new Error(
          `the order hangs: ${[...this.#blocked.values()].map(({ name }) => name).join(' and ')} wait and nothing is left to run`,
        )
    }
  }

  async #start(step: string): Promise<void> {
    const session = sessionOf(step)
    const open = this.#opened.byName.get(session)
    const body = this.#given.sessions[session]?.steps[step.slice(session.length + 1)]
    if (open === undefined || body === undefined) throw new Error(`there is no step ${step}`)
    const place = this.#outcome.trace.push(step) - 1
    const waiting: Waiting = {
      name: step,
      done: false,
      running: body(open, this.#context).then(
        (value) => this.#settle(waiting, { status: 'fulfilled', value }),
        (reason: unknown) => this.#settle(waiting, { status: 'rejected', reason }),
      ),
    }
    if (await this.#blocks(waiting, open.pid)) {
      this.#blocked.set(session, waiting)
      this.#outcome.trace[place] = `${step} (waits)`
    }
  }

  #settle(waiting: Waiting, settled: PromiseSettledResult<unknown>): void {
    waiting.done = true
    this.#outcome.record(waiting.name, settled)
  }

  /** Whether a step waits for a lock of another; false as soon as it has ended. */
  async #blocks(waiting: Waiting, pid: number): Promise<boolean> {
    const untilMs = performance.now() + HANG_MS
    for (let looks = 0; performance.now() < untilMs; ) {
      await Promise.race([waiting.running, sleep(LOOK_EVERY_MS)])
      if (waiting.done) return false
      const { rows } = await sql<{ blocked: boolean }>`SELECT cardinality(pg_blocking_pids(${pid}::integer)) > 0 AS blocked`.execute(
        this.#opened.monitor,
      )
      if (waiting.done) return false
      looks = rows[0]?.blocked === true ? looks + 1 : 0
      if (looks >= LOOKS) return true
    }
    throw new Error(`step ${waiting.name} neither ends nor waits for a lock`)
  }

  /** Lets those go on that are free again, with the steps that had to stand back meanwhile. */
  async #resume(): Promise<void> {
    for (let again = true; again; ) {
      again = false
      for (const [session, waiting] of this.#blocked) {
        const pid = this.#opened.byName.get(session)?.pid ?? -1
        if (await this.#blocks(waiting, pid)) continue
        this.#blocked.delete(session)
        again = true
        const deferred = this.#deferred.get(session) ?? []
        this.#deferred.set(session, [])
        for (const [index, step] of deferred.entries()) {
          await this.#start(step)
          if (!this.#blocked.has(session)) continue
          this.#deferred.set(session, deferred.slice(index + 1))
          break
        }
      }
    }
  }
}

const sessionOf = (step: string): string => step.slice(0, step.indexOf('.'))

/**
 * Empties every table of ours. By DELETE, because these tables hold a few rows: a TRUNCATE makes new files for each of them and is fifty times slower.
 * Ids go on counting.
 */
async function emptyTables(db: Db): Promise<void> {
  await sql`SELECT holdfast_test.empty_tables()`.execute(db).catch(async (error: { code?: string }) => {
    if (error.code !== '3F000' && error.code !== '42883') throw error // invalid_schema_name, undefined_function: the first time
    await sql`CREATE SCHEMA IF NOT EXISTS holdfast_test`.execute(db)
    await sql`
      CREATE OR REPLACE FUNCTION holdfast_test.empty_tables() RETURNS void LANGUAGE plpgsql SET session_replication_role = replica AS $$
      DECLARE name text;
      BEGIN
        FOR name IN
          SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE n.nspname = 'holdfast' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'schema_migration'
        LOOP
          EXECUTE 'DELETE FROM ' || name;
        END LOOP;
      END $$`.execute(db)
    await sql`SELECT holdfast_test.empty_tables()`.execute(db)
  })
}

interface Compilable<Params> {
  compile(params: Params): { readonly sql: string; readonly parameters: readonly unknown[] }
}

/**
 * A statement with a part of its text replaced, to show that a race test fails without it. Throws when there is nothing to replace, so that a
 * mutation cannot silently be none.
 */
export function mutated<Params, Row>(
  statement: Compilable<Params> & ((db: Db, params: Params) => Promise<Row[]>),
  ...replacements: readonly (readonly [from: string, to: string])[]
): (db: Db, params: Params) => Promise<Row[]> {
  return async (db, params) => {
    const compiled = statement.compile(params)
    let text = compiled.sql
    for (const [from, to] of replacements) {
      if (!text.includes(from)) throw new Error(`the statement does not contain ${JSON.stringify(from)}:\n${text}`)
      text = text.replaceAll(from, to)
    }
    // Without its head it is not prepared under the statement's name.
    return (await db.executeQuery<Row>(CompiledQuery.raw(text.replace(/^\/\* \S+ \*\//, ''), [...compiled.parameters]))).rows
  }
}
