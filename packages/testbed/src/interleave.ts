import { connect, type Db, engineSessionSettings, type Role } from '@holdfast/schema'
import { sql } from 'kysely'
import { InterleavingBrokenError, isBroken, OrderRun, Outcome, ordersOf, type Step, sessionOf } from './interleave-order.ts'
import { OpenSession } from './interleave-session.ts'

export { MutationError, mutated, type Replacement, withoutText } from './interleave-mutation.ts'
export { InterleavingBrokenError, Outcome, type Step, type StepError } from './interleave-order.ts'
export type { Session } from './interleave-session.ts'

export interface SessionPlan<Context> {
  /** The app whose database role the session has. Default: superuser. */
  readonly role?: Role
  /**
   * In the order in which they run. A step is whatever runs without another session coming between: one statement, or a function that opens a
   * transaction of its own. Only `begin`, `commit` and `rollback` of the session make a transaction that spans steps.
   */
  readonly steps: Readonly<Record<string, Step<Context>>>
  /** Leaves out the session's later steps once one has thrown. Default false: they run, and may meet 25P02. */
  readonly stopOnError?: boolean
}

export interface Interleaving<Context> {
  readonly database: { readonly url: string }
  /** Makes what the steps meet on, before each order, in empty tables. As superuser. */
  readonly setup: (db: Db) => Promise<Context>
  /** Two or three, by name. */
  readonly sessions: Readonly<Record<string, SessionPlan<Context>>>
  /** Looks at the end of each order, when transactions left open have been rolled back; what it throws fails that order. As superuser. */
  readonly check: (db: Db, context: Context, outcome: Outcome) => Promise<void>
  /** Takes the database back to where `setup` begins, before each order and after the last. Default: empties every table of the schema. */
  readonly reset?: (db: Db) => Promise<void>
  /** Runs this order alone, as a failure names it: `park.begin, deliver.send, park.commit`. */
  readonly only?: string | undefined
  /** How long nothing may move before the run ends with a description of who waits for whom. Default 10,000. */
  readonly hangMs?: number
}

export interface Failure {
  /** As `only` takes it. */
  readonly order: string
  /** As it was carried out, with who waited for whom. */
  readonly trace: string
  readonly error: unknown
}

export interface Report {
  /** Orders that were run: all there are. */
  readonly orders: number
  /** Orders in which some session had to wait for another. */
  readonly withWaits: number
  /** The different orders that came of them: a step of a session that waits stands back for those of the others. */
  readonly carriedOut: readonly string[]
  readonly failures: readonly Failure[]
}

/**
 * Runs every order of the sessions' steps that keeps the order within each session, after PostgreSQL's own isolation tester. What a step throws is
 * part of the outcome that `check` judges.
 *
 * Throws when the check of some order does, naming the first three; and `InterleavingBrokenError` at once when a step cannot run at all (a mistake in
 * the test, SQLSTATE class 42) or nothing moves any more.
 */
export async function interleave<Context>(given: Interleaving<Context>): Promise<Report> {
  const report = await runOrders(given)
  if (report.failures.length > 0) {
    const shown = report.failures.slice(0, 3).map(describe)
    throw new Error(`${report.failures.length} of ${report.orders} orders failed:\n${shown.join('\n')}`, {
      cause: report.failures[0]?.error,
    })
  }
  return report
}

/**
 * The other half of a race test: with its lock or its CASE taken out, some order must fail, or the test shows nothing. Throws when all pass.
 *
 * `onlyTheRace`: throws also when an order fails in which the sessions come one after the other, since then what was taken out protects more than the
 * race, or the change broke the statement itself. Default false.
 */
export async function expectInterleavingToFail<Context>(
  given: Interleaving<Context> & { readonly onlyTheRace?: boolean },
): Promise<Report> {
  const report = await runOrders(given)
  if (report.failures.length === 0)
    throw new Error(
      `all ${report.orders} orders passed without what was taken out: either it is not needed, or the check does not look at what it protects`,
    )
  const serial = given.onlyTheRace === true ? report.failures.find(({ order }) => isSerial(order.split(', '))) : undefined
  if (serial !== undefined)
    throw new Error(`an order fails in which nothing meets, so that it is not the race that is shown:\n${describe(serial)}`, {
      cause: serial.error,
    })
  return report
}

/** True where each session is done before the next one begins. */
function isSerial(order: readonly string[]): boolean {
  const sessions = order.map(sessionOf)
  return sessions.filter((name, index) => name !== sessions[index - 1]).length === new Set(sessions).size
}

function describe({ order, trace, error }: Failure): string {
  return `  ${trace}\n    ${error instanceof Error ? error.message : String(error)}\n    again: only: '${order}'`
}

async function runOrders<Context>(given: Interleaving<Context>): Promise<Report> {
  const plans = Object.entries(given.sessions)
  const steps = new Map(
    plans.flatMap(([name, plan]) => Object.entries(plan.steps).map(([step, body]) => [`${name}.${step}`, body] as const)),
  )
  const orders = given.only === undefined ? [...ordersOf(listsOf([...steps.keys()]))] : [parseOrder(given.only, [...steps.keys()])]
  await using opened = new AsyncDisposableStack()
  const monitor = opened.adopt(connect({ connectionString: given.database.url, max: 2, settings: engineSessionSettings }), (db) =>
    db.destroy(),
  )
  const sessions = new Map<string, OpenSession>()
  for (const [name, { role }] of plans) sessions.set(name, opened.use(await OpenSession.open(name, given.database.url, role)))
  const reset = given.reset ?? (await emptyingTables(monitor))
  const run = {
    steps,
    sessions,
    stopOnError: new Set(plans.flatMap(([name, { stopOnError }]) => (stopOnError === true ? [name] : []))),
    monitor,
    hangMs: given.hangMs ?? 10_000,
  }

  let withWaits = 0
  const carriedOut = new Set<string>()
  const failures: Failure[] = []
  for (const order of orders) {
    await reset(monitor)
    const context = await given.setup(monitor)
    const outcome = new Outcome()
    const failure = (error: unknown): Failure => ({ order: order.join(', '), trace: outcome.trace.join(' → '), error })
    try {
      await new OrderRun({ ...run, context, outcome }).run(order)
    } catch (error) {
      throw error instanceof InterleavingBrokenError
        ? new InterleavingBrokenError(describe(failure(error)).trimStart(), { cause: error.cause })
        : error
    }
    await Promise.all([...sessions.values()].map((session) => session.endOrder()))
    try {
      await given.check(monitor, context, outcome)
    } catch (error) {
      if (isBroken(error)) throw new InterleavingBrokenError(`the check cannot run: ${String(error)}`, { cause: error })
      failures.push(failure(error))
    }
    if (outcome.waits.size > 0) withWaits += 1
    carriedOut.add(outcome.trace.join(' → '))
  }
  await reset(monitor)
  return { orders: orders.length, withWaits, carriedOut: [...carriedOut], failures }
}

/** The steps by session, each list in its order. */
const listsOf = (steps: readonly string[]): string[][] => [...Map.groupBy(steps, sessionOf).values()]

/** Takes an order, or a trace as a failure prints it. */
function parseOrder(text: string, steps: readonly string[]): string[] {
  const order = text
    .replaceAll(/ \([^)]*\)/g, '')
    .split(/[,→]/)
    .map((step) => step.trim())
  const planned = new Set(listsOf(steps).map(String))
  const asPlanned = order.length === steps.length && listsOf(order).every((list) => planned.has(String(list)))
  if (!asPlanned) throw new InterleavingBrokenError(`only: '${text}' is no order of the steps ${steps.join(', ')}`)
  return order
}

/**
 * Empties every table of ours. By DELETE, because these tables hold a few rows: a TRUNCATE makes new files for each of them and is fifty times slower.
 * Ids go on counting.
 */
async function emptyingTables(monitor: Db): Promise<(db: Db) => Promise<void>> {
  await sql`
    CREATE SCHEMA IF NOT EXISTS holdfast_test;
    CREATE OR REPLACE FUNCTION holdfast_test.empty_tables() RETURNS void LANGUAGE plpgsql SET session_replication_role = replica AS $$
    DECLARE name text;
    BEGIN
      FOR name IN
        SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'holdfast' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'schema_migration'
      LOOP
        EXECUTE 'DELETE FROM ' || name;
      END LOOP;
    END $$`.execute(monitor)
  return async (db) => void (await sql`/* interleave.empty_tables */ SELECT holdfast_test.empty_tables()`.execute(db))
}
