// What the race tests share: one project, and the statements' parameters that no race depends on.
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { engineInvariants } from '@holdfast/invariants'
import {
  type AppliedRow,
  applyGiven,
  applyOutcomes,
  applyRiders,
  type ClaimedRow,
  claim,
  createProject,
  enqueue,
  isLostRace,
  keysToWake,
  type NewInstance,
  putGate,
  putRateLimit,
  ridersOf,
  type StagedOutcome,
  stageOutcomes,
  wakeWaiters,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import type { Session, Step } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'

export const MACHINES: readonly string[] = ['m/1']

export async function project(db: Db): Promise<ProjectId> {
  const [row] = await createProject(db, { name: 'default' })
  if (row === undefined) throw new Error('no project')
  return row.id
}

export async function insert(db: Db, projectId: ProjectId, ...more: Partial<NewInstance>[]): Promise<InstanceId[]> {
  const [row] = await enqueue(db, {
    projectId,
    declaredOnly: false,
    instances: (more.length === 0 ? [{}] : more).map((fields) => ({ machine: 'm', ...fields })),
  })
  return [...(row?.ids ?? [])]
}

export const gate = (db: Db, projectId: ProjectId, capacity: number, name = 'g') => putGate(db, { projectId, name, capacity })
export const rate = (db: Db, projectId: ProjectId, limit: Partial<Parameters<typeof putRateLimit>[1]> = {}) =>
  putRateLimit(db, { projectId, name: 'r', rate: 0, periodMs: 1_000, burst: 1, shards: 1, ...limit })

export const take = (db: Db, worker: string, limit = 10, leaseMs = 60_000): Promise<ClaimedRow[]> =>
  claim(db, { queue: 'default', limit, worker, leaseMs, machines: MACHINES })

export function outcome(
  claimed: Pick<ClaimedRow, 'id' | 'claim_epoch'>,
  fields: Partial<StagedOutcome> & Pick<StagedOutcome, 'kind'>,
): StagedOutcome {
  return {
    instanceId: claimed.id,
    claimEpoch: claimed.claim_epoch,
    fromStep: 'start',
    attempt: 0,
    keepHistory: true,
    claimedAgoUs: 0,
    startedAgoUs: 0,
    finishedAgoUs: 0,
    ...(fields.kind === 'done' ? { result: 'null' } : {}),
    ...fields,
  }
}

export const stage = (db: Db, ...outcomes: StagedOutcome[]): Promise<{ instance_id: InstanceId }[]> =>
  stageOutcomes(db, { worker: 'w', outcomes })

/** The flush transaction as its statements, so that others can come between them. */
export const flushSteps = {
  begin: (s: Session) => s.begin(),
  apply: (s: Session, context: { applied?: AppliedRow | undefined }) => apply(s, context),
  riders: (s: Session, context: { applied?: AppliedRow | undefined }) => riders(s, context),
  commit: (s: Session) => s.commit(),
}

export async function apply(
  s: Session,
  context: { applied?: AppliedRow | undefined },
  statement: typeof applyOutcomes | ((db: Db, params: { afterSeq: string; limit: number }) => Promise<AppliedRow[]>) = applyOutcomes,
): Promise<AppliedRow | undefined> {
  const [applied] = await statement(s.db, { afterSeq: '0', limit: 100 })
  context.applied = applied
  return applied
}

export async function riders(s: Session, { applied }: { applied?: AppliedRow | undefined }): Promise<void> {
  const follow = applied === undefined ? undefined : ridersOf(applied)
  if (follow !== undefined) await applyRiders(s.db, follow)
}

/** As the engine does: a race that was lost is run again, in a transaction of its own, and meets what the winner committed. */
export function retried<Context>(step: (db: Db, context: Context) => Promise<unknown>): Step<Context> {
  return async (s, context) => {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await step(s.db, context)
      } catch (error) {
        if (!isLostRace(error) || attempt === 10) throw error
        await s.rollback()
        await s.begin()
      }
    }
  }
}

/** A claim whose transaction lasts over the steps of others. Its `wake` is what its scheduler does after the commit. */
export const claimSteps = (worker: string, claimOnce: (db: Db, worker: string) => Promise<ClaimedRow[]> = (db) => take(db, worker)) => {
  let looked: ClaimedRow[] = []
  return {
    begin: (s: Session) => s.begin(),
    claim: retried(async (db) => (looked = await claimOnce(db, worker))),
    commit: (s: Session) => s.commit(),
    wake: (s: Session) => wakeParked(s.db, looked),
  }
}
/** What a scheduler does after the commit of a claim that has parked somebody. */
export const wakeParked = async (db: Db, looked: readonly ClaimedRow[]): Promise<unknown> => {
  const keys = keysToWake(looked)
  return keys.length === 0 ? [] : wakeWaiters(db, { keys })
}

/** The flush of a scheduler that applies its outcomes itself, in one transaction. */
export async function applyDirectly(db: Db, outcomes: readonly StagedOutcome[], goesOn: readonly boolean[] = []): Promise<AppliedRow> {
  const [applied] = await applyGiven(db, {
    worker: 'w',
    outcomes,
    goesOn: outcomes.map((_, index) => goesOn[index] ?? false),
    leaseMs: 60_000,
  })
  if (applied === undefined) throw new Error('applying outcomes answered no row')
  const follow = ridersOf(applied)
  if (follow !== undefined) await applyRiders(db, follow)
  return applied
}
/** A whole flush as its one transaction, without what follows the commit. */
export const flushOnce = (db: Db): Promise<AppliedRow | undefined> =>
  db.transaction().execute(async (trx) => {
    const [applied] = await applyOutcomes(trx, { afterSeq: '0', limit: 100 })
    const follow = applied === undefined ? undefined : ridersOf(applied)
    if (follow !== undefined) await applyRiders(trx, follow)
    return applied
  })
export const wakeFreed = async (db: Db, applied: AppliedRow | undefined): Promise<unknown> =>
  applied?.freed == null
    ? []
    : wakeWaiters(db, { keys: applied.freed.map(({ project_id, key }) => ({ projectId: project_id as ProjectId, key })) })

/** Runs whatever is runnable to its end, with what follows each commit and without the reaper's sweeps. Answers what is left. */
export async function drain(db: Db, queues: readonly string[] = ['default']): Promise<Row[]> {
  for (let round = 0; round < 50; round += 1) {
    let ran = 0
    for (const queue of queues) {
      const looked = await claim(db, { queue, limit: 10, worker: 'drain', leaseMs: 60_000, machines: MACHINES })
      await wakeParked(db, looked)
      const executing = looked.filter(({ status }) => status === 'executing')
      ran += looked.length
      if (executing.length === 0) continue
      await stage(
        db,
        ...executing.map((row) =>
          outcome(row, { kind: 'done', ...(row.concurrency_key === null ? {} : { heldKey: row.concurrency_key }) }),
        ),
      )
    }
    const applied = await flushOnce(db)
    await wakeFreed(db, applied)
    if (ran === 0 && applied?.taken === 0) return instances(db)
  }
  throw new Error('it never comes to rest')
}

export interface Slot {
  readonly key: string
  readonly slot: number
  readonly holder_id: string | null
  readonly holder_epoch: string | null
}
export async function slots(db: Db): Promise<Slot[]> {
  const { rows } = await sql<Slot>`SELECT key, slot, holder_id, holder_epoch FROM holdfast.gate_slot ORDER BY key, slot`.execute(db)
  return rows
}
/** Whole tokens that a key's shards hold. */
export async function tokens(db: Db): Promise<number[]> {
  const { rows } = await sql<{
    tokens: number
  }>`SELECT (tokens / 1000000.0)::float8 AS tokens FROM holdfast.rate_bucket ORDER BY key, shard`.execute(db)
  return rows.map((row) => row.tokens)
}

/** In the order that was carried out, `a` had begun before `b` did. */
export const ranBefore = (trace: readonly string[], a: string, b: string): boolean => {
  const [first, second] = [a, b].map((step) => trace.findIndex((at) => at === step || at.startsWith(`${step} `)))
  return first !== undefined && second !== undefined && first >= 0 && second >= 0 && first < second
}

export interface Row {
  readonly id: InstanceId
  readonly status: string
  readonly step: string
  readonly claim_epoch: string
  readonly claimed_by: string | null
}
export async function instances(db: Db): Promise<Row[]> {
  const { rows } = await sql<Row>`SELECT id, status::text, step, claim_epoch, claimed_by FROM holdfast.instance ORDER BY id`.execute(db)
  return rows
}

const looking = new WeakSet<Db>()

/**
 * Everything that must hold whatever the order was: whatever would be broken, and that nobody sleeps beside a free key. What is staged or expired is under way
 * here and not stuck. As one function in the database, whose plans are made once: this is asked after each of thousands of orders.
 */
export async function expectInvariants(db: Db): Promise<void> {
  if (!looking.has(db)) {
    const looks = engineInvariants
      .filter(({ id, severity }) => severity === 'broken' || id === 'E26')
      .map(({ id, query }) => {
        const text = query.compile({ graceMs: 0 }).sql.replaceAll(/\$\d+/g, '0')
        return `RETURN QUERY SELECT '${id}', to_jsonb(violating) FROM (${text}) AS violating;`
      })
    await sql
      .raw(`CREATE SCHEMA IF NOT EXISTS holdfast_test;
      CREATE OR REPLACE FUNCTION holdfast_test.violations() RETURNS TABLE (broken_invariant text, violating_row jsonb) LANGUAGE plpgsql AS $look$
      BEGIN ${looks.join('\n')} END $look$`)
      .execute(db)
    looking.add(db)
  }
  const { rows } = await sql`SELECT * FROM holdfast_test.violations()`.execute(db)
  if (rows.length > 0) throw new Error(`invariants are broken: ${JSON.stringify(rows)}`)
}
