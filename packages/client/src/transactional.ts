import {
  Channels,
  EnqueueRequest,
  HoldfastError,
  type InstanceId,
  type MachineRef,
  type ProjectId,
  rateKeyOf,
  SignalRequest,
  type SignalsOf,
  type StateOf,
  storableJson,
} from '@holdfast/contracts'
import {
  deliverSignalById,
  deliverSignalByKey,
  type Executor,
  findProject,
  insertInstances,
  type NewInstance,
  notify,
} from '@holdfast/queries'
import type { CompiledQuery, QueryResult } from 'kysely'
import { type Enqueue, type EnqueueOptions, enqueueBody } from './enqueue-options.ts'
import type { SignalOptions, SignalTarget } from './holdfast-client.ts'

/** What any driver can be made into: run a text with positional parameters ($1, $2, …) on the connection whose transaction is open. */
export interface SqlConnection {
  query(text: string, values: readonly unknown[]): Promise<{ readonly rows: readonly unknown[] }>
}

/** An open `pg` client (or pool client) with BEGIN sent, a Kysely transaction, or any driver as {@link SqlConnection}. */
export type OwnTransaction = SqlConnection | KyselyTransaction
interface KyselyTransaction {
  readonly isTransaction: boolean
  executeQuery<Row>(query: CompiledQuery<Row>): Promise<QueryResult<Row>>
  withoutPlugins(): Pick<KyselyTransaction, 'executeQuery'>
}

export interface TransactionalOptions {
  /** Project to insert into. Default `default`. */
  readonly project?: string
}

/** A hint per queue at most this often from one process: a NOTIFY takes a database-wide lock as its transaction commits. */
const HINT_WINDOW_MS = 10
const lastHintMs = new Map<string, number>()

/**
 * Enqueues and signals inside the developer's own transaction, so that a business row and its job commit together or not at all.
 *
 * The connection's role must be a member of `holdfast_enqueue`. Schedulers are told by a NOTIFY that PostgreSQL delivers at the commit, at most once per
 * queue in 10 ms from this process; what is not told is found by their poll, within a second.
 */
export class TransactionalClient {
  readonly #project: string
  /** Ids of projects never change, so one look-up is enough. */
  #knownProjectId: ProjectId | undefined

  constructor({ project = 'default' }: TransactionalOptions = {}) {
    this.#project = project
  }

  /**
   * As {@link HoldfastClient.enqueue}, in `transaction`. A machine that nobody has declared yet is no error: the instance waits for it.
   * Throws HoldfastError `invalid_instance` and NotStorableError before anything is sent, so that the transaction goes on.
   */
  async enqueue<Machine extends MachineRef>(
    transaction: OwnTransaction,
    machine: Machine | string,
    state?: StateOf<Machine>,
    options: EnqueueOptions = {},
  ): Promise<{ id: InstanceId; created: boolean }> {
    const { ids, created } = await this.enqueueMany(transaction, [
      { machine, ...(state === undefined ? {} : { state }), ...options } as Enqueue<Machine>,
    ])
    return { id: ids[0] as InstanceId, created: created[0] === true }
  }

  async enqueueMany<Machine extends MachineRef>(
    transaction: OwnTransaction,
    instances: readonly Enqueue<Machine>[],
  ): Promise<{ ids: readonly InstanceId[]; created: readonly boolean[] }> {
    const db = executorOf(transaction)
    const rows = instances.map(newInstance)
    const inserted = await insertInstances(db, { projectId: await this.#projectId(db), instances: rows, declaredOnly: false })
    await hint(db, inserted.queues)
    // The connection is the developer's, and so are its type parsers: ids are strings here, whatever int8 is there.
    return { ids: inserted.ids.map((id) => String(id) as InstanceId), created: inserted.created }
  }

  /** As {@link HoldfastClient.signal}, in `transaction`. Throws HoldfastError `not_found` when there is no live target; the transaction goes on. */
  async signal<
    Machine extends MachineRef = MachineRef<unknown, unknown, Record<string, unknown>>,
    Name extends keyof SignalsOf<Machine> & string = keyof SignalsOf<Machine> & string,
  >(
    transaction: OwnTransaction,
    target: SignalTarget,
    name: Name,
    payload?: SignalsOf<Machine>[Name],
    { dedupKey }: SignalOptions = {},
  ): Promise<{ duplicate: boolean }> {
    const db = executorOf(transaction)
    const { id, correlation_key: correlationKey } = checked(SignalRequest, 'invalid_signal', {
      ...('id' in target ? { id: target.id } : { correlation_key: target.correlationKey }),
      name,
      ...(dedupKey === undefined ? {} : { dedup_key: dedupKey }),
    })
    const json = storableJson(payload === undefined ? {} : payload, `the payload of ${name}`)
    const signal = { projectId: await this.#projectId(db), name, payload: json, dedupKey }
    const [delivered] =
      id === undefined
        ? await deliverSignalByKey(db, { ...signal, correlationKey: correlationKey ?? '' })
        : await deliverSignalById(db, { ...signal, id })
    if (delivered?.target_id == null) {
      throw new HoldfastError(
        'not_found',
        `there is no live instance ${'id' in target ? target.id : `with the key ${target.correlationKey}`}; the signal was not stored`,
      )
    }
    if (delivered.queue !== null) await hint(db, [delivered.queue])
    return { duplicate: delivered.duplicate }
  }

  async #projectId(db: Executor): Promise<ProjectId> {
    if (this.#knownProjectId !== undefined) return this.#knownProjectId
    const [row] = await findProject(db, { name: this.#project })
    if (row === undefined)
      throw new HoldfastError('not_found', `there is no project ${this.#project}; create it through the management API`)
    this.#knownProjectId = row.id
    return row.id
  }
}

function newInstance<Machine extends MachineRef>({ machine, state, ...options }: Enqueue<Machine>): NewInstance {
  const body = checked(EnqueueRequest, 'invalid_instance', enqueueBody(machine, undefined, options))
  return {
    machine: body.machine,
    version: body.version,
    queue: body.queue,
    state: storableJson(state === undefined ? {} : state, `the state of ${body.machine}`),
    priority: body.priority,
    delayMs: body.delay_ms,
    eligibleAt: body.eligible_at,
    correlationKey: body.correlation_key,
    correlationScope: body.correlation_scope,
    concurrencyKey: body.concurrency_key,
    ...rateKeyOf(body.rate_limit, body.rate_limit?.weight),
  }
}

/** Refused here, because a refusal by the database would abort the developer's transaction. */
function checked<Value>(schema: Schema<Value>, code: 'invalid_instance' | 'invalid_signal', value: unknown): Value {
  const parsed = schema.safeParse(value)
  if (parsed.success) return parsed.data
  const message = parsed.error.issues
    .map((issue) => [issue.path.map(String).join('.'), issue.message].filter(Boolean).join(': '))
    .join('; ')
  throw new HoldfastError(code, message)
}
interface Schema<Value> {
  safeParse(value: unknown):
    | { readonly success: true; readonly data: Value }
    | {
        readonly success: false
        readonly error: { readonly issues: readonly { readonly path: readonly PropertyKey[]; readonly message: string }[] }
      }
}

async function hint(db: Executor, queues: readonly string[]): Promise<void> {
  const nowMs = performance.now()
  const due = queues.filter((queue) => nowMs - (lastHintMs.get(queue) ?? Number.NEGATIVE_INFINITY) >= HINT_WINDOW_MS)
  if (due.length === 0) return
  for (const queue of due) lastHintMs.set(queue, nowMs)
  await notify(db, { channel: Channels.runnable, payloads: due })
}

function executorOf(transaction: OwnTransaction): Executor {
  if ('executeQuery' in transaction) {
    if (!transaction.isTransaction) {
      throw new TypeError(
        'this Kysely is not a transaction, so each statement would commit by itself; give the one that transaction().execute() hands you',
      )
    }
    // The developer's plugins are for the developer's rows: camel-cased, ours would lose their columns.
    return transaction.withoutPlugins() as unknown as Executor
  }
  if ('totalCount' in transaction) {
    throw new TypeError('this is a pool, so each statement would commit by itself; give the client that you have sent BEGIN on')
  }
  return {
    async executeQuery<Row>(query: CompiledQuery<Row>): Promise<QueryResult<Row>> {
      const { rows } = await transaction.query(query.sql, query.parameters)
      return { rows: rows as Row[] }
    },
  } as Executor
}
