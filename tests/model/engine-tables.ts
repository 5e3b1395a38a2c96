// The real statements on a real database, one command after the other, as the processes put them together.
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import {
  type AppliedRow,
  applyGiven,
  applyOutcomes,
  applyRiders,
  type ClaimedRow,
  cancelInstances,
  cancelOverdue,
  claim,
  claimById,
  createProject,
  deleteFinished,
  deliverSignalById,
  type EndedRow,
  type Executor,
  endCascade,
  endInstances,
  enqueue,
  fireAwaitDeadlines,
  heartbeat,
  type Key,
  keysToWake,
  listGateKeys,
  loadInbox,
  type NewInstance,
  nextCascade,
  nextWaitedKeys,
  promoteDue,
  promoteThrottled,
  putGate,
  putRateLimit,
  reapExpired,
  releaseClaims,
  retryInstances,
  ridersOf,
  type StagedOutcome,
  setQueuePaused,
  stageOutcomes,
  wakeWaiters,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { letPass } from '@holdfast/testbed/time-travel'
import { type RawBuilder, sql } from 'kysely'
import {
  type Answered,
  type Command,
  GATE,
  GRACE_HOURS,
  LEASE_HOURS,
  type Limits,
  MAX_RECLAIMS,
  type NewRow,
  type Nth,
  RATE,
  type Ticket,
} from './commands.ts'
import { type Answer, MOVES_ON } from './specification.ts'

/** Time is counted in hours, so that the seconds which a program really takes do not matter beside them. */
const HOUR_MS = 3_600_000
const ALL = 1_000

/** The statements that a test may replace by ones with a fault. */
export const realStatements = {
  applyGiven,
  applyOutcomes,
  applyRiders,
  claim,
  deliverSignalById,
  reapExpired,
  releaseClaims,
  stageOutcomes,
  wakeWaiters,
}
export type Statements = {
  readonly [Name in keyof typeof realStatements]: (
    db: Executor,
    params: Parameters<(typeof realStatements)[Name]>[1],
  ) => ReturnType<(typeof realStatements)[Name]>
}

/** What is compared, in the words of the specification; ids are numbers in the order of creation. */
export interface Tables {
  readonly instances: readonly Record<string, unknown>[]
  readonly signals: readonly unknown[]
  readonly outcomes: readonly unknown[]
  readonly notes: readonly Nth[]
  readonly slots: Readonly<Record<string, number>>
  readonly tokens: Readonly<Record<string, number>>
}

interface Dump {
  readonly instances:
    | readonly (Record<string, unknown> & { id: string; parent: string | null; until_at: number | null; status: string })[]
    | null
  readonly signals: readonly { id: string; target: string; name: string }[] | null
  readonly outcomes: readonly { id: string; epoch: number; kind: string }[] | null
  readonly notes: readonly string[] | null
  readonly slots: Readonly<Record<string, number>> | null
  readonly tokens: Readonly<Record<string, number>> | null
}

export class EngineTables {
  readonly #db: Db
  readonly #project: ProjectId
  readonly #statements: Statements
  readonly #ids: InstanceId[] = []
  readonly #nths = new Map<string, Nth>()
  /** Of signals, in the order in which they were sent. */
  readonly #sent: string[] = []
  readonly #sentNths = new Map<string, number>()
  #startMs = 0
  #passedMs = 0

  private constructor(db: Db, project: ProjectId, statements: Statements) {
    this.#db = db
    this.#project = project
    this.#statements = statements
  }

  /** Empties the tables and declares the limits. The ids go on; they are translated. */
  static async open(db: Db, { capacity, rate }: Limits, statements: Statements = realStatements): Promise<EngineTables> {
    await sql`WITH i AS (DELETE FROM holdfast.instance), s AS (DELETE FROM holdfast.signal), r AS (DELETE FROM holdfast.signal_receipt),
      o AS (DELETE FROM holdfast.outcome), t AS (DELETE FROM holdfast.transition), g AS (DELETE FROM holdfast.gate_slot),
      b AS (DELETE FROM holdfast.rate_bucket), p AS (DELETE FROM holdfast.limit_policy), c AS (DELETE FROM holdfast.cascade),
      q AS (DELETE FROM holdfast.queue) SELECT`.execute(db)
    // The trigger of an executing instance that was deleted has looked for its slot; whatever it left is gone with the others.
    const { rows } = await sql<{ id: ProjectId; now_ms: number }>`
      SELECT (SELECT id FROM holdfast.project LIMIT 1) AS id, (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms`.execute(db)
    const id = rows[0]?.id ?? (await createProject(db, { name: 'model' }))[0]?.id
    if (id === undefined) throw new Error('no project')
    const tables = new EngineTables(db, id, statements)
    tables.#startMs = rows[0]?.now_ms ?? 0
    if (capacity !== null) await putGate(db, { projectId: id, name: GATE, capacity })
    if (rate !== null)
      await putRateLimit(db, { projectId: id, name: RATE, rate: rate.rate, periodMs: rate.hours * HOUR_MS, burst: rate.burst, shards: 1 })
    return tables
  }

  async perform(command: Command): Promise<Answer> {
    switch (command.do) {
      case 'insert':
        return this.#insert(command.rows)
      case 'claim': {
        const { queue, limit, window, park, versions } = command
        const rows = await this.#statements.claim(this.#db, {
          queue,
          limit,
          window,
          park,
          worker: 'w',
          leaseMs: LEASE_HOURS * HOUR_MS,
          machines: versions.map((version) => `m/${version}`),
        })
        return this.#claimed(rows, command.wakes)
      }
      case 'claimOne':
        return this.#claimed(
          await claimById(this.#db, {
            id: this.#id(command.instance),
            worker: 'w',
            leaseMs: LEASE_HOURS * HOUR_MS,
            machines: ['m/1', 'm/2'],
          }),
          command.wakes,
        )
      case 'stage': {
        const rows = await this.#statements.stageOutcomes(this.#db, {
          worker: 'w',
          outcomes: command.answered.map((one) => this.#outcome(one)),
        })
        return this.#nthsOf(rows.map(({ instance_id }) => instance_id))
      }
      case 'direct':
        return this.#applied(
          (trx) =>
            this.#statements.applyGiven(trx, {
              worker: 'w',
              outcomes: command.answered.map((one) => this.#outcome(one)),
              goesOn: command.answered.map(({ goesOn }) => goesOn),
              leaseMs: LEASE_HOURS * HOUR_MS,
            }),
          command.wakes,
        )
      case 'flush':
        return this.#applied(
          (trx) => this.#statements.applyOutcomes(trx, { afterSeq: '0', limit: command.limit }),
          command.wakes,
          command.commits,
        )
      case 'signal': {
        const { instance, name, dedupKey } = command
        const [row] = await this.#statements.deliverSignalById(this.#db, {
          projectId: this.#project,
          id: this.#id(instance),
          name,
          payload: '{}',
          dedupKey: dedupKey ?? undefined,
        })
        return row?.target_id == null ? 'no target' : row.duplicate ? 'duplicate' : 'delivered'
      }
      case 'beat': {
        const rows = await heartbeat(this.#db, { ...this.#claims(command.tickets), leaseMs: LEASE_HOURS * HOUR_MS })
        const said = new Map(rows.map((row) => [`${row.id}/${row.claim_epoch}`, row.cancelling]))
        return command.tickets.map(({ instance, epoch }) => {
          const cancelling = said.get(`${this.#id(instance)}/${epoch}`)
          return cancelling === undefined ? 'held' : cancelling ? 'cancelling' : 'lost'
        })
      }
      case 'release': {
        const rows = await this.#statements.releaseClaims(this.#db, this.#claims(command.tickets))
        if (command.wakes) await this.#wake(rows.flatMap(({ concurrency_key: key }) => (key === null ? [] : [this.#key(key)])))
        return this.#nthsOf(rows.map(({ id }) => id))
      }
      case 'reap':
        return this.#ended((trx) => this.#statements.reapExpired(trx, { limit: ALL, defaultMaxReclaims: MAX_RECLAIMS }), command.wakes)
      case 'promoteDue':
        return (await promoteDue(this.#db, { limit: ALL }))[0]?.count
      case 'promoteThrottled':
        return (await promoteThrottled(this.#db, { limit: ALL }))[0]?.count
      case 'fireDeadlines':
        return (await fireAwaitDeadlines(this.#db, { limit: ALL }))[0]?.count
      case 'sweep': {
        const keys = await nextWaitedKeys(this.#db, { projectId: '0' as ProjectId, key: '', limit: ALL })
        return this.#wake(keys.map(({ project_id: projectId, key }) => ({ projectId, key })))
      }
      case 'cancel':
        return this.#ended(
          (trx) =>
            this.#cancel(
              trx,
              command.instances.map((nth) => this.#id(nth)),
            ),
          command.wakes,
        )
      case 'cancelOverdue':
        return this.#ended((trx) => cancelOverdue(trx, { graceMs: GRACE_HOURS * HOUR_MS, limit: ALL }), command.wakes)
      case 'cascade':
        return this.#ended(async (trx) => {
          const [next] = await nextCascade(trx, { limit: ALL })
          if (next === undefined) return []
          await endCascade(trx, { parentId: next.parent_id })
          return this.#cancel(trx, next.children ?? [])
        }, command.wakes)
      case 'retry': {
        const rows = await retryInstances(this.#db, { projectId: this.#project, ids: command.instances.map((nth) => this.#id(nth)) })
        return this.#nthsOf(rows.map(({ id }) => id))
      }
      case 'gate': {
        await putGate(this.#db, { projectId: this.#project, name: GATE, capacity: command.capacity })
        if (!command.wakes) return undefined
        const keys = await listGateKeys(this.#db, { projectId: this.#project, name: GATE })
        return this.#wake(keys.map(({ key }) => this.#key(key)))
      }
      case 'pause':
        await setQueuePaused(this.#db, { queue: command.queue, paused: command.paused })
        return undefined
      case 'deleteFinished':
        return (await deleteFinished(this.#db, { retentionMs: command.retention * HOUR_MS, limit: ALL }))[0]?.count
      case 'pass':
        await letPass(this.#db, command.hours * HOUR_MS)
        this.#passedMs += command.hours * HOUR_MS
        return undefined
    }
  }

  /** Everything that the specification speaks of, and for those that wait for a rate limit the moment, in microseconds, which orders them. */
  async read(): Promise<{ readonly tables: Tables; readonly untilAt: ReadonlyMap<Nth, number> }> {
    const { rows } = await sql<Dump>`
SELECT
  (SELECT json_agg(i) FROM (
    SELECT id::text, parent_id::text AS parent, parent_epoch::integer, queue, priority, version, status, step, claim_epoch::integer AS epoch, attempt, reclaims,
      concurrency_key AS key, rate_key, rate_weight AS weight, correlation_guard AS guard, error ->> 'code' AS error,
      status = 'executing' AND gate_slot IS NOT NULL AS holds_slot,
      ${this.#hour(sql`eligible_at`)} AS eligible,
      ${this.#hour(sql`lease_expires_at`)} AS lease,
      CASE WHEN throttled_until = 'infinity' THEN 1e15 ELSE ${this.#hour(sql`throttled_until`)} END AS until,
      CASE WHEN throttled_until = 'infinity' THEN 1e300 ELSE extract(epoch FROM throttled_until + ${this.#passedMs}::bigint * interval '1 millisecond') * 1e6
        END::float8 AS until_at,
      CASE WHEN status IN ('awaiting_signal', 'awaiting_children') THEN ${this.#hour(sql`await_deadline`)} END AS deadline,
      CASE status WHEN 'awaiting_children' THEN children_pending END AS pending,
      array_to_string(awaits, ',') AS awaits,
      cancel_requested_at IS NOT NULL AND status = 'executing' AS cancelling
    FROM holdfast.instance g ORDER BY g.id) i) AS instances,
  (SELECT json_agg(json_build_object('id', id::text, 'target', target_id::text, 'name', name) ORDER BY id) FROM holdfast.signal) AS signals,
  (SELECT json_agg(json_build_object('id', instance_id::text, 'epoch', claim_epoch, 'kind', kind) ORDER BY seq) FROM holdfast.outcome) AS outcomes,
  (SELECT json_agg(parent_id::text ORDER BY parent_id) FROM holdfast.cascade) AS notes,
  (SELECT json_object_agg(key, held) FROM (SELECT key, count(*) AS held FROM holdfast.gate_slot WHERE holder_id IS NOT NULL GROUP BY key) s) AS slots,
  (SELECT json_object_agg(key, tokens) FROM (SELECT key, round(sum(tokens) / 500000) / 2 AS tokens FROM holdfast.rate_bucket GROUP BY key) b) AS tokens`.execute(
      this.#db,
    )
    const [dump] = rows
    if (dump === undefined) throw new Error('a query without a table answered no row')
    for (const { id } of dump.instances ?? []) {
      if (this.#nths.has(id)) continue
      this.#nths.set(id, this.#ids.length)
      this.#ids.push(id as InstanceId)
    }
    for (const { id } of dump.signals ?? []) {
      if (this.#sentNths.has(id)) continue
      this.#sentNths.set(id, this.#sent.length)
      this.#sent.push(id)
    }
    const untilAt = new Map<Nth, number>()
    const instances = (dump.instances ?? []).map(({ id, parent, until_at, ...row }) => {
      const nth = this.#nth(id)
      if (until_at !== null) untilAt.set(nth, until_at)
      return { nth, parent: parent === null ? null : this.#nth(parent), ...row }
    })
    return {
      tables: {
        instances,
        signals: (dump.signals ?? []).map(({ id, target, name }) => ({ nth: this.#sentNths.get(id), target: this.#nth(target), name })),
        outcomes: (dump.outcomes ?? []).map(({ id, epoch, kind }) => ({ nth: this.#nth(id), epoch, kind })),
        notes: (dump.notes ?? []).map((id) => this.#nth(id)),
        slots: dump.slots ?? {},
        tokens: dump.tokens ?? {},
      },
      untilAt,
    }
  }

  /** Hours since the program began, as the specification counts them. */
  #hour(column: RawBuilder<unknown>): RawBuilder<unknown> {
    return sql`round((extract(epoch FROM ${column}) * 1000 + ${this.#passedMs}::bigint - ${this.#startMs}::float8) / ${HOUR_MS}::integer)::integer`
  }

  #id(nth: Nth): InstanceId {
    // One that has never been: nobody has this id.
    return this.#ids[nth] ?? ('9000000000000000000' as InstanceId)
  }

  #nth(id: string): Nth {
    const nth = this.#nths.get(id)
    if (nth === undefined) throw new Error(`the database speaks of ${id}, which is not there`)
    return nth
  }

  #nthsOf(ids: readonly string[]): Nth[] {
    return ids.map((id) => this.#nth(id)).toSorted((a, b) => a - b)
  }

  #key(key: string): Key {
    return { projectId: this.#project, key }
  }

  async #insert(rows: readonly NewRow[]): Promise<Answer> {
    const [row] = await enqueue(this.#db, { projectId: this.#project, declaredOnly: false, instances: rows.map(instanceOf) })
    if (row?.unlimited != null) return 'refused'
    const inserted = new Set(row?.inserted ?? [])
    return (row?.ids ?? []).map((id) => inserted.has(id))
  }

  async #claimed(rows: readonly ClaimedRow[], wakes: boolean): Promise<Answer> {
    const taken = rows.filter(({ status }) => status === 'executing')
    const inbox = taken.length === 0 ? [] : await loadInbox(this.#db, { ids: taken.map(({ id }) => id) })
    if (wakes) await this.#wake(keysToWake(rows))
    return taken.map(({ id, claim_epoch, awaits }) => ({
      instance: this.#nth(id),
      epoch: Number(claim_epoch),
      shown: inbox.filter((s) => s.target_id === id && awaits?.includes(s.name)).map((s) => this.#sentNths.get(s.id)),
    }))
  }

  async #applied(apply: (trx: Executor) => Promise<AppliedRow[]>, wakes: boolean, commits = true): Promise<Answer> {
    const died = new Error('died before its commit')
    try {
      const applied = await this.#db.transaction().execute(async (trx) => {
        const [row] = await apply(trx)
        const riders = row === undefined ? undefined : ridersOf(row)
        if (riders !== undefined) await this.#statements.applyRiders(trx, riders)
        if (!commits) throw died
        return row
      })
      if (wakes) await this.#wake((applied?.freed ?? []).map(({ key }) => this.#key(key)))
      return applied?.applied
    } catch (error) {
      if (error !== died) throw error
      return undefined
    }
  }

  async #ended(end: (trx: Executor) => Promise<readonly EndedRow[]>, wakes: boolean): Promise<Answer> {
    const { rows } = await endInstances(this.#db, end, async (keys) => {
      if (wakes) await this.#wake(keys)
      return []
    })
    return rows.map(({ id, status }) => ({ nth: this.#nth(id), status })).toSorted((a, b) => a.nth - b.nth)
  }

  #cancel(trx: Executor, ids: readonly InstanceId[]): Promise<EndedRow[]> {
    return ids.length === 0 ? Promise.resolve([]) : cancelInstances(trx, { ids, projectId: null, reason: null })
  }

  async #wake(keys: readonly Key[]): Promise<undefined> {
    if (keys.length > 0) await this.#statements.wakeWaiters(this.#db, { keys })
  }

  #claims(tickets: readonly Ticket[]) {
    return { ids: tickets.map(({ instance }) => this.#id(instance)), epochs: tickets.map(({ epoch }) => String(epoch)) }
  }

  #outcome({ ticket, shape }: Answered): StagedOutcome {
    const { kind } = shape
    const movesOn = MOVES_ON.has(kind)
    const shown = ticket.shown.flatMap((nth) => this.#sent[nth] ?? [])
    const error = JSON.stringify({ code: 'step', message: 'x' })
    return {
      instanceId: this.#id(ticket.instance),
      claimEpoch: String(ticket.epoch),
      kind,
      fromStep: ticket.step,
      attempt: ticket.attempt,
      keepHistory: true,
      claimedAgoUs: 0,
      startedAgoUs: 0,
      finishedAgoUs: 0,
      heldKey: ticket.key ?? undefined,
      ...(kind === 'done' ? { result: '{}', discard: shape.discard } : {}),
      ...(kind === 'fail' || kind === 'cancel' || kind === 'retry' ? { error } : {}),
      ...(kind === 'sleep' || kind === 'retry' ? { delayMs: shape.delay * HOUR_MS } : {}),
      ...(movesOn
        ? {
            step: `${kind}ed`,
            keyChange: shape.key !== ticket.key,
            concurrencyKey: shape.key ?? undefined,
            rateKey: shape.rateKey ?? undefined,
            rateWeight: shape.weight,
          }
        : {}),
      ...(kind === 'await_signal' ? { awaits: shape.awaits, presented: shown } : movesOn ? { consumed: shown } : {}),
      ...((kind === 'await_signal' || kind === 'spawn') && shape.timeout !== null ? { timeoutMs: shape.timeout * HOUR_MS } : {}),
      ...(kind === 'spawn' ? { children: JSON.stringify(shape.children.map(childOf)), joinCount: shape.joinCount ?? undefined } : {}),
      ...(kind === 'continue_as' ? { version: 2 } : {}),
    }
  }
}

const instanceOf = (row: NewRow): NewInstance => ({
  machine: 'm',
  version: row.version,
  queue: row.queue,
  priority: row.priority,
  delayMs: row.delay === 0 ? undefined : row.delay * HOUR_MS,
  correlationKey: row.correlationKey ?? undefined,
  correlationScope: row.scope,
  concurrencyKey: row.key ?? undefined,
  rateKey: row.rateKey ?? undefined,
  rateWeight: row.weight,
})

const childOf = (row: NewRow) => ({
  machine: 'm',
  version: row.version,
  queue: row.queue,
  priority: row.priority,
  delay_ms: row.delay * HOUR_MS,
  correlation_key: row.correlationKey,
  correlation_scope: row.scope,
  concurrency_key: row.key,
  rate_key: row.rateKey,
  rate_weight: row.weight,
})
