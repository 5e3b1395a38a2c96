// What the race tests share: one project, and the statements' parameters that no race depends on.
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { checkInvariants } from '@holdfast/invariants'
import {
  type AppliedRow,
  applyOutcomes,
  applyRiders,
  ridersOf,
  type ClaimedRow,
  claim,
  createProject,
  enqueue,
  type NewInstance,
  type StagedOutcome,
  stageOutcomes,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import type { Session } from '@holdfast/testbed/interleave'
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

/** Everything that must hold whatever the order was. */
export async function expectInvariants(db: Db): Promise<void> {
  // What is staged or expired is under way here and not stuck; what is broken is broken.
  const broken = (await checkInvariants(db, { graceMs: 600_000 })).filter(({ severity }) => severity === 'broken')
  if (broken.length > 0) throw new Error(`invariants are broken: ${JSON.stringify(broken)}`)
}
