import { Channels, type InstanceId } from '@holdfast/contracts'
import { type AppliedRow, applyGiven, type Executor, stageOutcomes, type StagedOutcome } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { announceApplied, followApplied } from './applied.ts'
import type { Hints } from './hints.ts'
import type { Limiter } from './limiter.ts'
import type { Logger } from './logger.ts'
import type { RunOutcome } from './run-step.ts'

/** What became of a batch: those that are in, and of those the ones whose worker goes on, with their new epoch. */
export interface Written {
  readonly landed: ReadonlySet<InstanceId>
  readonly continued: ReadonlyMap<InstanceId, string>
}

/** Where the outcomes of a scheduler go. */
export interface OutcomeSink {
  /** Whether a worker may go on under its claim, because a write tells it that the step before is committed. */
  readonly continues: boolean
  write(batch: readonly RunOutcome[]): Promise<Written>
  /** One outcome in a step's own transaction (`ctx.commit`). */
  commit(trx: Executor, outcome: RunOutcome): Promise<{ readonly landed: boolean; readonly afterCommit: () => Promise<void> }>
}

interface SinkResources {
  readonly db: Db
  readonly worker: string
  readonly hints: Hints
  readonly logger: Logger
}

const NOTHING_CONTINUES: ReadonlyMap<InstanceId, string> = new Map()

/** Into the `outcome` table, for a flusher to apply: one insert, and the scheduler needs no more rights than that. The default. */
export class StagingSink implements OutcomeSink {
  readonly continues = false
  readonly #resources: SinkResources

  constructor(resources: SinkResources) {
    this.#resources = resources
  }

  async write(batch: readonly RunOutcome[]): Promise<Written> {
    const { db, worker, hints } = this.#resources
    const stored = await stageOutcomes(db, { worker, outcomes: batch.map(aged()) })
    if (stored.length > 0) hints.send(Channels.outcome, '')
    return { landed: new Set(stored.map((row) => row.instance_id)), continued: NOTHING_CONTINUES }
  }

  async commit(trx: Executor, outcome: RunOutcome): Promise<{ landed: boolean; afterCommit: () => Promise<void> }> {
    const { worker, hints } = this.#resources
    const stored = await stageOutcomes(trx, { worker, outcomes: [aged()(outcome)] })
    return {
      landed: stored.length === 1,
      afterCommit: async () => hints.send(Channels.outcome, ''),
    }
  }
}

/** Straight to the instances, by the flusher's own statements (`HOLDFAST_FLUSH=direct`): no flusher needed, and the scheduler needs its rights. */
export class DirectSink implements OutcomeSink {
  readonly continues = true
  readonly #resources: SinkResources & { readonly limiter: Limiter }
  readonly #leaseMs: number

  constructor(resources: SinkResources & { readonly limiter: Limiter; readonly leaseMs: number }) {
    this.#resources = resources
    this.#leaseMs = resources.leaseMs
  }

  async write(batch: readonly RunOutcome[]): Promise<Written> {
    const applied = await this.#resources.db.transaction().execute((trx) => this.#apply(trx, batch))
    await announceApplied(this.#resources, applied)
    const epochs = applied.continued_epochs ?? []
    return {
      landed: new Set(applied.applied_ids ?? []),
      continued: applied.continued === null ? NOTHING_CONTINUES : new Map(applied.continued.map((id, index) => [id, epochs[index] ?? ''])),
    }
  }

  async commit(trx: Executor, outcome: RunOutcome): Promise<{ landed: boolean; afterCommit: () => Promise<void> }> {
    const applied = await this.#apply(trx, [outcome])
    return { landed: applied.applied === 1, afterCommit: () => announceApplied(this.#resources, applied) }
  }

  async #apply(trx: Executor, batch: readonly RunOutcome[]): Promise<AppliedRow> {
    const { worker } = this.#resources
    const [applied] = await applyGiven(trx, {
      worker,
      outcomes: batch.map(aged()),
      goesOn: batch.map((outcome) => outcome.inline),
      leaseMs: this.#leaseMs,
    })
    return followApplied(trx, applied)
  }
}

/** Fills in how long ago things happened, as of now. */
function aged(): (outcome: RunOutcome) => StagedOutcome {
  const nowMs = performance.now()
  const ago = (thenMs: number): number => Math.max(0, Math.round((nowMs - thenMs) * 1_000))
  return (outcome) => ({
    ...outcome,
    claimedAgoUs: ago(outcome.claimedAtMs),
    startedAgoUs: ago(outcome.startedAtMs),
    finishedAgoUs: ago(outcome.finishedAtMs),
  })
}
