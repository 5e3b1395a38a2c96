import { FailureCodes, type ProjectId } from '@holdfast/contracts'
import {
  applyOutcomes,
  applyRiders,
  type Executor,
  hasOutcomes,
  isLostRace,
  isRefusedData,
  type Key,
  peekOutcome,
  quarantineOutcome,
  ridersOfEnded,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { announceApplied, type Announcing, followApplied, wakeFreed } from './applied.ts'
import type { Hints } from './hints.ts'
import { type Limiter, PostgresLimiter } from './limiter.ts'
import { type Logger, silentLogger } from './logger.ts'

export interface FlusherOptions {
  readonly db: Db
  readonly hints: Hints
  readonly logger?: Logger
  /** Most outcomes in one transaction. Default 1,000. Larger gains nothing and holds more locks at once; at 1 each outcome pays a commit of its own. */
  readonly maxBatch?: number
  /** Who keeps limits. Default: rows of the same database. */
  readonly limiter?: Limiter
}

export interface FlushResult {
  readonly taken: number
  readonly applied: number
  readonly stale: number
  readonly quarantined: number
}

/**
 * How far behind the newest outcome taken the next look begins. Ids commit out of order: an insert that drew its `seq` early may commit late,
 * and must not be passed by for long.
 */
const LOW_WATER_SLACK = 5_000
/** Look from the very front at least this often, whatever the load: for what committed later than the slack allows. */
const FROM_FRONT_EVERY_MS = 1_000
const NOTHING: FlushResult = { taken: 0, applied: 0, stale: 0, quarantined: 0 }
/** Lost races in a row before the error is the caller's: each one means that somebody else got on. */
const RACE_ATTEMPTS = 10

/**
 * Group commit for the whole cluster: applies the staged outcomes of all schedulers in transactions of four statements each, however
 * many outcomes there are. Any number may run; they share the work by SKIP LOCKED.
 *
 * An outcome that the database refuses does not hold up the others: the batch is halved until it is alone at the front, then it goes into
 * quarantine and its instance fails, both visibly (digest N2).
 */
export class Flusher {
  readonly #db: Db
  readonly #logger: Logger
  readonly #resources: Announcing
  readonly #maxBatch: number
  #limit: number
  #afterSeq = 0n
  #fromFrontAtMs = 0
  #idle = true
  readonly totals = { flushes: 0, applied: 0, stale: 0, quarantined: 0 }

  constructor({ db, hints, logger = silentLogger, maxBatch = 1_000, limiter = new PostgresLimiter(db) }: FlusherOptions) {
    this.#db = db
    this.#logger = logger
    this.#resources = { limiter, hints, logger }
    this.#maxBatch = this.#limit = maxBatch
  }

  /** One transaction's worth; `taken` 0 means that nothing waits. Throws when the database is away. */
  async flush(): Promise<FlushResult> {
    if (this.#idle && (await hasOutcomes(this.#db, {}))[0]?.waiting !== true) return NOTHING
    const result = await this.#flushOnce()
    // Once nothing was found, the next look costs one statement and no transaction.
    this.#idle = result.taken === 0 && result.quarantined === 0
    return result
  }

  async #flushOnce(): Promise<FlushResult> {
    const nowMs = performance.now()
    if (nowMs >= this.#fromFrontAtMs) this.#lookFromFront(nowMs)
    let result = await this.#flushFrom(this.#afterSeq)
    if (result.taken === 0 && result.quarantined === 0 && this.#afterSeq > 0n) {
      this.#lookFromFront(nowMs)
      result = await this.#flushFrom(0n)
    }
    this.totals.flushes += result.taken > 0 ? 1 : 0
    this.totals.applied += result.applied
    this.totals.stale += result.stale
    this.totals.quarantined += result.quarantined
    if (result.stale > 0)
      this.#logger.warn({ stale: result.stale }, 'stale outcomes dropped: their claims were over before they were applied')
    return result
  }

  #lookFromFront(nowMs: number): void {
    this.#afterSeq = 0n
    this.#fromFrontAtMs = nowMs + FROM_FRONT_EVERY_MS
  }

  async #flushFrom(afterSeq: bigint): Promise<FlushResult> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        const params = { afterSeq: afterSeq.toString(), limit: this.#limit }
        const applied = await this.#db.transaction().execute(async (trx) => followApplied(trx, (await applyOutcomes(trx, params))[0]))
        this.#limit = Math.min(this.#maxBatch, this.#limit * 2)
        await announceApplied(this.#resources, applied)
        if (applied.max_seq !== null) {
          const mark = BigInt(applied.max_seq) - BigInt(LOW_WATER_SLACK)
          if (mark > this.#afterSeq) this.#afterSeq = mark
        }
        return { taken: applied.taken, applied: applied.applied, stale: applied.taken - applied.applied, quarantined: 0 }
      } catch (error) {
        if (isLostRace(error)) {
          if (attempt >= RACE_ATTEMPTS) throw error
        } else if (!isRefusedData(error)) {
          throw error // away, or not as its migrations left it: no outcome's fault
        } else if (this.#limit > 1) {
          this.#limit = Math.max(1, this.#limit >> 1)
          this.#logger.warn({ err: error, limit: this.#limit }, 'a flush was refused; halving the batch to find the outcome')
        } else {
          return this.#applyFront(afterSeq)
        }
      }
    }
  }

  /** The front outcome, alone and by its own number, so that no other can be taken for the one that fails. */
  async #applyFront(afterSeq: bigint): Promise<FlushResult> {
    const trx = await this.#db.startTransaction().execute()
    try {
      const [front] = await peekOutcome(trx, { afterSeq: afterSeq.toString() })
      if (front === undefined) {
        await trx.commit().execute()
        return NOTHING
      }
      const justBefore = (BigInt(front.seq) - 1n).toString()
      const alone = await trx.savepoint('alone').execute()
      let result: FlushResult
      let announce = async (): Promise<void> => undefined
      try {
        const applied = await followApplied(alone, (await applyOutcomes(alone, { afterSeq: justBefore, limit: 1 }))[0])
        announce = () => announceApplied(this.#resources, applied)
        result = { taken: applied.taken, applied: applied.applied, stale: applied.taken - applied.applied, quarantined: 0 }
        await alone.releaseSavepoint('alone').execute()
      } catch (error) {
        if (!isRefusedData(error) || isLostRace(error)) throw error
        await alone.rollbackToSavepoint('alone').execute()
        const freed = await this.#quarantine(alone, justBefore, error)
        announce = () => wakeFreed(this.#resources, freed)
        result = { taken: 1, applied: 0, stale: 0, quarantined: 1 }
      }
      await trx.commit().execute()
      await announce()
      return result
    } catch (error) {
      await trx
        .rollback()
        .execute()
        .catch(() => undefined) // the first error is the one to report
      throw error
    }
  }

  /** Answers the key that the failed instance held. */
  async #quarantine(trx: Executor, afterSeq: string, error: unknown): Promise<Key[]> {
    const message = `The database refused to apply this outcome: ${error instanceof Error ? error.message : String(error)}`
    const [row] = await quarantineOutcome(trx, { afterSeq, error: JSON.stringify({ code: FailureCodes.outcomeRejected, message }) })
    this.#logger.error(
      { err: error, instance_id: row?.instance_id, claim_epoch: row?.claim_epoch },
      'an outcome was put into quarantine and its instance failed',
    )
    if (row?.failed !== true) return []
    const riders = ridersOfEnded([{ ...row, id: row.instance_id, status: 'failed' }])
    if (riders !== undefined) await applyRiders(trx, riders)
    return row.held_key === null ? [] : [{ projectId: row.project_id as ProjectId, key: row.held_key }]
  }
}
