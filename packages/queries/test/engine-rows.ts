import { type InstanceId, InstanceStatuses, type OutcomeKind, type ProjectId, transitions } from '@holdfast/contracts'
import {
  type AppliedRow,
  applyOutcomes,
  applyRiders,
  type ClaimedRow,
  type ClaimParams,
  claim,
  createProject,
  deliverSignalById,
  type EnqueueRow,
  enqueue,
  getHistory,
  getInstances,
  type InstanceRow,
  type NewInstance,
  ridersOf,
  type StagedOutcome,
  stageOutcomes,
  type TransitionRow,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'

/** Everything of a row that a statement may change, read without one of our own statements. */
export interface RawInstance {
  readonly id: InstanceId
  readonly status: string
  readonly step: string
  readonly state: unknown
  readonly result: unknown
  readonly error: unknown
  readonly attempt: number
  readonly reclaims: number
  readonly claim_epoch: string
  readonly claimed_by: string | null
  readonly lease_expires_at: Date | null
  readonly awaits: string[] | null
  readonly await_deadline: Date | null
  readonly concurrency_key: string | null
  readonly correlation_guard: string | null
  readonly eligible_at: Date
  readonly updated_at: Date
  /** Milliseconds from the database's now; negative is past. */
  readonly eligible_in_ms: number
  readonly deadline_in_ms: number | null
  readonly lease_in_ms: number | null
}

/** The statements on a database of one's own, with the parameters that a test does not care about filled in. */
export class EngineRows {
  readonly database: TestDatabase
  readonly db: Db
  readonly projectId: ProjectId

  private constructor(database: TestDatabase, projectId: ProjectId) {
    this.database = database
    this.db = database.db
    this.projectId = projectId
  }

  static async open(): Promise<EngineRows> {
    const database = await testDatabase()
    await refuseForbiddenMoves(database.db)
    return new EngineRows(database, await newProject(database.db, 'default'))
  }

  async insertRow(...instances: Partial<NewInstance>[]): Promise<EnqueueRow> {
    const [row] = await enqueue(this.db, {
      projectId: this.projectId,
      declaredOnly: false,
      instances: instances.map((instance) => ({ machine: 'm', ...instance })),
    })
    return present(row)
  }

  /** Ids in the order given. */
  async insert(...instances: Partial<NewInstance>[]): Promise<InstanceId[]> {
    const row = await this.insertRow(...instances)
    if (row.inserted?.length !== instances.length) throw new Error(`not all were inserted: ${JSON.stringify(row)}`)
    return row.ids ?? []
  }

  claim(params: Partial<ClaimParams> = {}, db: Db = this.db): Promise<ClaimedRow[]> {
    return claim(db, { queue: 'default', limit: 100, worker: 'w1', leaseMs: 60_000, machines: ['m/1'], ...params })
  }

  /** Inserts one and claims it. */
  async executing(instance: Partial<NewInstance> = {}): Promise<InstanceId> {
    const [id] = await this.insert(instance)
    const claimed = await this.claim()
    if (claimed.length !== 1 || claimed[0]?.id !== id) throw new Error(`claimed ${JSON.stringify(claimed)} instead of ${id}`)
    return present(id)
  }

  async stage(...outcomes: (Partial<StagedOutcome> & { instanceId: InstanceId; kind: OutcomeKind })[]): Promise<InstanceId[]> {
    const rows = await stageOutcomes(this.db, { worker: 'w1', outcomes: outcomes.map(outcome) })
    return rows.map((row) => row.instance_id)
  }

  /** Both statements of a flush, as the flusher sends them. */
  async flush(limit = 1_000, db: Db = this.db): Promise<AppliedRow & { woken: string[] | null }> {
    return db.transaction().execute(async (trx) => {
      const applied = present((await applyOutcomes(trx, { afterSeq: '0', limit }))[0])
      const follow = ridersOf(applied)
      const [riders] = follow === undefined ? [] : await applyRiders(trx, follow)
      return { ...applied, woken: riders?.queues ?? null }
    })
  }

  /** Stages the outcome of a claimed instance and applies it. */
  async answer(instanceId: InstanceId, kind: OutcomeKind, more: Partial<StagedOutcome> = {}): Promise<RawInstance> {
    const { claim_epoch: claimEpoch } = await this.raw(instanceId)
    await this.stage({ instanceId, kind, claimEpoch, ...more })
    await this.flush()
    return this.raw(instanceId)
  }

  /** Parked on `names`, for `end`. */
  async parked(
    names: readonly string[] = ['go'],
    instance: Partial<NewInstance> = {},
    more: Partial<StagedOutcome> = {},
  ): Promise<InstanceId> {
    const id = await this.executing(instance)
    await this.answer(id, 'await_signal', { step: 'end', awaits: names, ...more })
    return id
  }

  async signal(id: InstanceId, name: string, more: { dedupKey?: string; payload?: string; projectId?: ProjectId; db?: Db } = {}) {
    const { db = this.db, ...body } = more
    const rows = await deliverSignalById(db, { projectId: this.projectId, id, name, payload: '{}', ...body })
    return present(rows[0])
  }

  async raw(id: InstanceId): Promise<RawInstance> {
    const { rows } = await sql<RawInstance>`
      SELECT *, (extract(epoch FROM eligible_at - now()) * 1000)::float8 AS eligible_in_ms,
        (extract(epoch FROM await_deadline - now()) * 1000)::float8 AS deadline_in_ms,
        (extract(epoch FROM lease_expires_at - now()) * 1000)::float8 AS lease_in_ms
      FROM holdfast.instance WHERE id = ${id}::bigint`.execute(this.db)
    return present(rows[0])
  }

  async get(id: InstanceId): Promise<InstanceRow> {
    return present((await getInstances(this.db, { projectId: this.projectId, ids: [id] }))[0])
  }

  history(id: InstanceId): Promise<TransitionRow[]> {
    return getHistory(this.db, { id, limit: 100 })
  }

  /** Ids in the inbox, oldest first. */
  async inbox(id: InstanceId): Promise<string[]> {
    const { rows } = await sql<{ id: string }>`SELECT id FROM holdfast.signal WHERE target_id = ${id}::bigint ORDER BY id`.execute(this.db)
    return rows.map((row) => row.id)
  }

  async count(table: 'instance' | 'signal' | 'signal_receipt' | 'outcome' | 'outcome_quarantine' | 'transition'): Promise<number> {
    const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM ${sql.table(`holdfast.${table}`)}`.execute(this.db)
    return rows[0]?.n ?? -1
  }

  /** As if the leases of everything that executes had run out. */
  async expireLeases(): Promise<void> {
    await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 minute' WHERE status = 'executing'`.execute(this.db)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.database[Symbol.asyncDispose]()
  }
}

/** Whatever a test does, a move that the table of contracts does not have fails it. */
async function refuseForbiddenMoves(db: Db): Promise<void> {
  const allowed = InstanceStatuses.flatMap((from) => InstanceStatuses.filter((to) => transitions[from][to]).map((to) => `${from} ${to}`))
  await sql
    .raw(`CREATE FUNCTION public.refuse_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      RAISE EXCEPTION 'contracts forbid % to %', OLD.status, NEW.status; END $$;
    CREATE TRIGGER refuse_move BEFORE UPDATE OF status ON holdfast.instance FOR EACH ROW
      WHEN (OLD.status <> NEW.status AND (OLD.status || ' ' || NEW.status) <> ALL ('{${allowed.map((move) => `"${move}"`).join(',')}}'))
      EXECUTE FUNCTION public.refuse_move()`)
    .execute(db)
}

export async function newProject(db: Db, name: string): Promise<ProjectId> {
  return present((await createProject(db, { name }))[0]).id
}

export function outcome(given: Partial<StagedOutcome> & { instanceId: InstanceId; kind: OutcomeKind }): StagedOutcome {
  return {
    claimEpoch: '1',
    fromStep: 'start',
    attempt: 0,
    keepHistory: true,
    claimedAgoUs: 3_000,
    startedAgoUs: 2_000,
    finishedAgoUs: 1_000,
    ...(given.kind === 'fail' || given.kind === 'cancel' ? { error: '{"code":"failed","message":"no"}' } : {}),
    ...given,
  }
}

export function present<Value>(value: Value | null | undefined): Value {
  if (value === null || value === undefined) throw new Error('a value was expected')
  return value
}

/** A statement that some session has sent and that another one's lock holds up. Resolves as soon as the server says so. */
export async function untilBlocked(db: Db, name: string): Promise<void> {
  for (;;) {
    const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE ${`/* ${name} */%`}`.execute(db)
    if ((rows[0]?.n ?? 0) > 0) return
  }
}
