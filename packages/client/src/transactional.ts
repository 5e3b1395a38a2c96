import {
  Channels,
  durationMs,
  HoldfastError,
  type InstanceId,
  InstanceIdSchema,
  type MachineRef,
  type ProjectId,
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
import { type Enqueue, type EnqueueOptions, machineName } from './enqueue-options.ts'
import type { SignalOptions, SignalTarget } from './holdfast-client.ts'

/** What any driver can be made into: run a text with positional parameters ($1, $2, …) on the connection whose transaction is open. */
export interface SqlConnection {
  query(text: string, values: readonly unknown[]): Promise<{ readonly rows: readonly unknown[] }>
}

/** An open `pg` client (or pool client) with BEGIN sent, a Kysely transaction, or any driver as {@link SqlConnection}. */
export type OwnTransaction = SqlConnection | KyselyTransaction
interface KyselyTransaction {
  executeQuery<Row>(query: CompiledQuery<Row>): Promise<QueryResult<Row>>
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

  /** As {@link HoldfastClient.enqueue}, in `transaction`. A machine that nobody has declared yet is no error: the instance waits for it. */
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
    return { ids: inserted.ids, created: inserted.created }
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
    const signal = { projectId: await this.#projectId(db), name, payload: storableJson(payload ?? {}, 'the payload'), dedupKey }
    const [delivered] =
      'id' in target
        ? await deliverSignalById(db, { ...signal, id: InstanceIdSchema.parse(target.id) })
        : await deliverSignalByKey(db, { ...signal, correlationKey: target.correlationKey })
    if (delivered === undefined || delivered.target_id === null) {
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
  return {
    machine: machineName(machine),
    version: options.version ?? (typeof machine === 'string' ? undefined : machine.version),
    queue: options.queue,
    state: storableJson(state ?? {}, `the state of ${machineName(machine)}`),
    priority: options.priority,
    delayMs: options.delay === undefined ? undefined : durationMs(options.delay),
    eligibleAt: options.eligibleAt?.toISOString(),
    correlationKey: options.correlationKey,
    correlationScope: options.correlationScope,
    concurrencyKey: options.concurrencyKey,
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
  if ('executeQuery' in transaction) return transaction as unknown as Executor
  const connection = transaction
  return {
    async executeQuery<Row>(query: CompiledQuery<Row>): Promise<QueryResult<Row>> {
      const { rows } = await connection.query(query.sql, query.parameters)
      return { rows: rows as Row[] }
    },
  } as Executor
}
