import { connect, type Database, DatabaseRoles, type Db, engineSessionSettings, type Role } from '@holdfast/schema'
import { type ControlledTransaction, type IsolationLevel, sql } from 'kysely'

/** One of the sessions that meet: a connection of its own, on which its steps run one after the other. */
export interface Session {
  readonly name: string
  /** Everything goes over the one connection. After `begin` it is that transaction, in which Kysely refuses to open another. */
  readonly db: Db
  /** Opens a transaction that lasts over the steps to come. Default isolation level: the database's. */
  begin(isolation?: IsolationLevel): Promise<void>
  /** Throws Kysely's `AbortedTransactionError` where PostgreSQL rolls back because a statement before it had failed. */
  commit(): Promise<void>
  rollback(): Promise<void>
}

// A deadlock is what some orders are to run into; a second of waiting for each would be most of the test's time.
const settings = { ...engineSessionSettings, deadlock_timeout: '50ms' }

export class OpenSession implements Session, AsyncDisposable {
  readonly name: string
  readonly pid: number
  readonly #pool: Db
  readonly #connection: Db
  readonly #release: () => Promise<void>
  #transaction: ControlledTransaction<Database> | undefined

  private constructor(name: string, pid: number, pool: Db, connection: Db, release: () => Promise<void>) {
    this.name = name
    this.pid = pid
    this.#pool = pool
    this.#connection = connection
    this.#release = release
  }

  static async open(name: string, connectionString: string, role: Role | undefined): Promise<OpenSession> {
    const pool = connect({ connectionString, max: 1, role: role && DatabaseRoles[role], settings, applicationName: `session ${name}` })
    const connection = Promise.withResolvers<Db>()
    const released = Promise.withResolvers<void>()
    // Held until the end: the pool would replace an idle connection, and locks are looked up by the backend's pid.
    const held = pool.connection().execute((db) => {
      connection.resolve(db)
      return released.promise
    })
    held.catch(connection.reject)
    const release = (): Promise<void> => {
      released.resolve()
      return held
    }
    try {
      const { rows } = await sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`.execute(await connection.promise)
      if (rows[0] === undefined) throw new Error('no pg_backend_pid()')
      return new OpenSession(name, rows[0].pid, pool, await connection.promise, release)
    } catch (error) {
      await release().catch(() => undefined) // it rejects with what is thrown here
      await pool.destroy()
      throw error
    }
  }

  get db(): Db {
    return this.#transaction ?? this.#connection
  }

  async begin(isolation?: IsolationLevel): Promise<void> {
    if (this.#transaction !== undefined) throw new TypeError(`session ${this.name} is in a transaction already`)
    const start = this.#connection.startTransaction()
    this.#transaction = await (isolation === undefined ? start : start.setIsolationLevel(isolation)).execute()
  }

  async commit(): Promise<void> {
    await this.#end().commit().execute()
  }

  async rollback(): Promise<void> {
    await this.#end().rollback().execute()
  }

  #end(): ControlledTransaction<Database> {
    const transaction = this.#transaction
    if (transaction === undefined) throw new TypeError(`session ${this.name} is in no transaction`)
    this.#transaction = undefined
    return transaction
  }

  /** Ends what an order has left open, as the end of its process would. Called when no step is under way. */
  async endOrder(): Promise<void> {
    if (this.#transaction !== undefined) await this.rollback()
    await sql`RESET ALL; SELECT pg_advisory_unlock_all()`.execute(this.#connection)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#release()
    await this.#pool.destroy()
  }
}
