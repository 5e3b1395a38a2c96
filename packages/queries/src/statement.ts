import type { Db } from '@holdfast/schema'
import {
  type CompiledQuery,
  DummyDriver,
  Kysely,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
  type RawBuilder,
  sql,
} from 'kysely'

/** What a query function needs of a connection: a pool, a transaction or one pinned connection all do. */
export type Executor = Pick<Db, 'executeQuery'>

/**
 * One statement that we send: a function of its parameters whose text never changes, so that it is parsed and planned once
 * per connection. The text starts with the name as a comment, by which `connect()` prepares it and `pg_stat_statements` shows it.
 */
export interface Statement<Params, Row> {
  (db: Executor, params: Params): Promise<Row[]>
  readonly statement: string
  /** Parameters to compile the text with where it is written down (`statements/**`) or explained in a test. */
  readonly sample: Params
  compile(params: Params): CompiledQuery<Row>
}

const registry = new Map<string, Statement<never, unknown>>()

/** Every statement of the query layer, by name: for the checked-in texts, the plan tests and nothing else. */
export const allStatements: ReadonlyMap<string, Statement<never, unknown>> = registry

// Compiles without a connection; the dialect's compiler is all it uses.
const compiler = new Kysely<unknown>({
  dialect: {
    createAdapter: () => new PostgresAdapter(),
    createDriver: () => new DummyDriver(),
    createIntrospector: (db) => new PostgresIntrospector(db),
    createQueryCompiler: () => new PostgresQueryCompiler(),
  },
})

export function statement<Params, Row>(name: string, build: (params: Params) => RawBuilder<Row>, sample: Params): Statement<Params, Row> {
  if (registry.has(name)) throw new Error(`two statements are named ${name}`)
  const head = sql.raw(`/* ${name} */ `)
  const compile = (params: Params): CompiledQuery<Row> => sql<Row>`${head}${build(params)}`.compile(compiler)
  const run = async (db: Executor, params: Params): Promise<Row[]> => (await db.executeQuery<Row>(compile(params))).rows
  const made = Object.assign(run, { statement: name, sample, compile })
  registry.set(name, made as unknown as Statement<never, unknown>)
  return made
}

/**
 * A column of a batch as an array parameter: the array's own text, because pg's encoding of a JavaScript array looks at every element with several
 * regular expressions (7 µs a job over the columns of an outcome). Null where no row has a value; `unnest` pads it.
 */
export function column<Row>(rows: readonly Row[], pick: (row: Row) => string | number | boolean | null | undefined): string | null {
  let some = false
  let text = '{'
  for (const [index, row] of rows.entries()) {
    const value = pick(row)
    if (index > 0) text += ','
    if (value === null || value === undefined) text += 'NULL'
    else {
      some = true
      text += typeof value === 'string' ? quoted(value) : value
    }
  }
  return some ? `${text}}` : null
}

const SPECIAL = /["\\]/g
const quoted = (value: string): string => `"${value.includes('"') || value.includes('\\') ? value.replaceAll(SPECIAL, '\\$&') : value}"`

/** A PostgreSQL array literal, for a column of arrays: arrays of arrays would have to be rectangular. */
export function arrayLiteral(values: readonly string[] | null | undefined): string | null {
  if (values === null || values === undefined) return null
  return `{${values.map(quoted).join(',')}}`
}
