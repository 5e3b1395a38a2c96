import { connect, type Db, type PoolOptions } from '@holdfast/schema'

export interface StatementCount<Result> {
  readonly count: number
  /** In the order in which they were sent. */
  readonly texts: readonly string[]
  /** The same by name: `engine.claim` for a named statement, the text in capitals (`BEGIN`) for others. */
  readonly names: readonly string[]
  readonly result: Result
}

const listeners = new WeakMap<object, Set<(text: string) => void>>()

/** `connect()` for tests: what goes through it can be counted. */
export function connectCounted(options: PoolOptions): Db {
  const hearing = new Set<(text: string) => void>()
  const db = connect({ ...options, onStatement: (text) => hearing.forEach((hear) => hear(text)) })
  listeners.set(db, hearing)
  return db
}

/**
 * Runs `work` and tells which statements were sent through `db` meanwhile, BEGIN and COMMIT included, by whomever: nothing else should be using
 * it. `db` is that of a `testDatabase()` or of its `connectAs()`.
 */
export async function countStatements<Result>(db: Db, work: () => Promise<Result>): Promise<StatementCount<Result>> {
  const hearing = listeners.get(db)
  if (hearing === undefined) throw new TypeError('countStatements takes the db of a testDatabase() or of its connectAs()')
  const texts: string[] = []
  const hear = (text: string): void => void texts.push(text)
  hearing.add(hear)
  try {
    const result = await work()
    return { count: texts.length, texts, names: texts.map((text) => /^\/\* (\S+) \*\//.exec(text)?.[1] ?? text.toUpperCase()), result }
  } finally {
    hearing.delete(hear)
  }
}
