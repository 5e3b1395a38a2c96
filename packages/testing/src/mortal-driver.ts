import type { CompiledQuery, DatabaseConnection, Driver, QueryCompiler, QueryResult, TransactionSettings } from 'kysely'

/** Something that a process sends to the database, or has just had an answer to. */
export interface Moment {
  /** `committed`: it holds, whether it was sent alone or in a transaction. `committing`: the COMMIT of its transaction is about to be sent. */
  readonly when: 'before' | 'committing' | 'committed'
  /** `engine.claim`: the name that the statement's text begins with; empty for other texts. */
  readonly statement: string
  /** What it answered, when `committed` and not part of a transaction. */
  readonly rows?: readonly unknown[]
  /** The ids that the statement was given, where its only parameter is a list of them. */
  readonly ids?: readonly string[]
  /** The instance whose claim this transaction has locked: a step's own (`ctx.commit`). */
  readonly own?: string | undefined
}

type Options = Parameters<Driver['acquireConnection']>[0]
type CompileQuery = QueryCompiler['compileQuery']

const LOCK_CLAIM = 'engine.lock_claim'
const statementOf = (text: string): string => /^\/\* (\S+) \*\//.exec(text)?.[1] ?? ''
const never = <Value>(): Promise<Value> => new Promise(() => {})

/**
 * The database connections of one process that can die. Dead means what it means to a process: code that waits for an answer never goes on, no connection is handed
 * out any more, and nothing that was to be done at the end is done. Whoever started it throws it away.
 */
export class Mortal {
  readonly #isFatal: (moment: Moment) => boolean
  readonly #died = Promise.withResolvers<void>()
  #dead = false

  constructor(isFatal: (moment: Moment) => boolean) {
    this.#isFatal = isFatal
  }

  get dead(): boolean {
    return this.#dead
  }
  /** Resolves at its death. */
  get died(): Promise<void> {
    return this.#died.promise
  }

  /** As a `wrapDriver` of `connect()`. */
  wrap = (driver: Driver): Driver => new MortalDriver(driver, this)

  /** `value`, unless this moment is the last one or that was before. */
  async pass<Value>(moment: Moment, value: Value): Promise<Value> {
    if (this.#dead) return never()
    if (!this.#isFatal(moment)) return value
    this.#dead = true
    this.#died.resolve()
    return never()
  }
  /** The answer, if this process lives to see it. */
  async survive<Value>(answer: Promise<Value>): Promise<Value> {
    try {
      const value = await answer
      return this.#dead ? await never() : value
    } catch (error) {
      if (this.#dead) return never()
      throw error
    }
  }
}

class MortalConnection implements DatabaseConnection {
  readonly real: DatabaseConnection
  readonly #mortal: Mortal
  /** What its open transaction has sent. */
  #sent: string[] | undefined
  #own: string | undefined

  constructor(real: DatabaseConnection, mortal: Mortal) {
    this.real = real
    this.#mortal = mortal
  }

  async executeQuery<Row>(query: CompiledQuery, options?: Options): Promise<QueryResult<Row>> {
    const statement = statementOf(query.sql)
    if (this.#sent !== undefined && statement === LOCK_CLAIM) this.#own = String(query.parameters[0])
    const ids = idsOf(query.parameters)
    await this.#mortal.pass({ when: 'before', statement, ids, own: this.#own }, undefined)
    const result = await this.#mortal.survive(this.real.executeQuery<Row>(query, options))
    if (this.#sent === undefined) return this.#mortal.pass({ when: 'committed', statement, rows: result.rows, ids }, result)
    this.#sent.push(statement)
    return result
  }

  streamQuery<Row>(query: CompiledQuery, chunkSize: number, options?: Options): AsyncIterableIterator<QueryResult<Row>> {
    return this.real.streamQuery<Row>(query, chunkSize, options)
  }

  begun(): void {
    this.#sent = []
  }
  async ending(when: 'committing' | 'committed'): Promise<void> {
    for (const statement of this.#sent ?? []) await this.#mortal.pass({ when, statement, own: this.#own }, undefined)
  }
  over(): void {
    this.#sent = undefined
    this.#own = undefined
  }
}

const idsOf = (parameters: readonly unknown[]): readonly string[] =>
  parameters.length === 1 && Array.isArray(parameters[0]) ? parameters[0].map(String) : []

class MortalDriver implements Driver {
  readonly #real: Driver
  readonly #mortal: Mortal

  constructor(real: Driver, mortal: Mortal) {
    this.#real = real
    this.#mortal = mortal
  }

  init(options?: Options): Promise<void> {
    return this.#real.init(options)
  }
  async acquireConnection(options?: Options): Promise<DatabaseConnection> {
    if (this.#mortal.dead) return never()
    return new MortalConnection(await this.#mortal.survive(this.#real.acquireConnection(options)), this.#mortal)
  }
  async beginTransaction(connection: DatabaseConnection, settings: TransactionSettings): Promise<void> {
    const mortal = mortalOf(connection)
    await this.#mortal.survive(this.#real.beginTransaction(mortal.real, settings))
    mortal.begun()
  }
  async commitTransaction(connection: DatabaseConnection): Promise<void> {
    const mortal = mortalOf(connection)
    await mortal.ending('committing')
    await this.#mortal.survive(this.#real.commitTransaction(mortal.real))
    await mortal.ending('committed')
    mortal.over()
  }
  async rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    const mortal = mortalOf(connection)
    await this.#mortal.survive(this.#real.rollbackTransaction(mortal.real))
    mortal.over()
  }
  async savepoint(connection: DatabaseConnection, name: string, compile: CompileQuery): Promise<void> {
    await this.#mortal.survive(this.#real.savepoint?.(mortalOf(connection).real, name, compile) ?? unsupported())
  }
  async rollbackToSavepoint(connection: DatabaseConnection, name: string, compile: CompileQuery): Promise<void> {
    await this.#mortal.survive(this.#real.rollbackToSavepoint?.(mortalOf(connection).real, name, compile) ?? unsupported())
  }
  async releaseSavepoint(connection: DatabaseConnection, name: string, compile: CompileQuery): Promise<void> {
    await this.#mortal.survive(this.#real.releaseSavepoint?.(mortalOf(connection).real, name, compile) ?? unsupported())
  }
  releaseConnection(connection: DatabaseConnection, options?: Options): Promise<void> {
    return this.#real.releaseConnection(mortalOf(connection).real, options)
  }
  destroy(options?: Options): Promise<void> {
    return this.#real.destroy(options)
  }
}

function mortalOf(connection: DatabaseConnection): MortalConnection {
  if (connection instanceof MortalConnection) return connection
  throw new TypeError('a connection of another driver')
}
const unsupported = (): Promise<never> => Promise.reject(new Error('the driver has no savepoints'))
