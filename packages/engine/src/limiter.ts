import type { InstanceId } from '@holdfast/contracts'
import {
  type ClaimedRow,
  type ClaimParams,
  claim,
  claimById,
  type DueRow,
  type Key,
  nextWaitedKeys,
  promoteThrottled,
  releaseChangedRateLines,
  removeIdleBuckets,
  removeIdleSlots,
  wakeLines,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'

/**
 * What the engine's processes ask of whatever keeps gates, serial keys and rate limits. Claiming is part of it, because admitting a row and claiming it must be one decision:
 * a limit that is taken for a row which somebody else then claims would leak.
 *
 * What another backend has to hold, whoever dies when: never more holders than a gate has room for; a rate limit debited once for a claim; both limits of a row or neither; the order of a
 * serial key's line; and no waiter forgotten (of the look after a park and the look after an end, the later one sees both).
 */
export interface Limiter {
  /**
   * Claims the most urgent ones of a queue that their limits let run (`executing`), and parks those that they do not (`throttled`) or, with `park: false`, lets those stand whom a held key denies
   * (`runnable`); answers all of them.
   */
  claim(params: ClaimParams): Promise<ClaimedRow[]>
  /** The same for one instance; answers nothing where it is not runnable. */
  claimById(params: Omit<ClaimParams, 'queue' | 'limit' | 'window' | 'park'> & { readonly id: InstanceId }): Promise<ClaimedRow[]>
  /** After the commit of whatever has freed these keys, or parked somebody for them: makes as many runnable as may run; answers the queues that have got something. */
  wake(keys: readonly Key[]): Promise<readonly string[]>
  /** Some of the keys that somebody waits for, in order, from behind `after`: for a sweep that wakes those whom a process that died has not. */
  waitedKeys(after: Key, limit: number): Promise<Key[]>
  /** Makes runnable whose rate limit has refilled for it. */
  promote(limit: number): Promise<DueRow | undefined>
  /** Lets those ask again who were told a time by a rate limit that has changed since. */
  releaseChanged(limit: number): Promise<{ readonly count: number; readonly queues: readonly string[] }>
  /** Forgets what has not been used for `idleMs` and would come back the same; answers how much. */
  removeIdle(idleMs: number, limit: number): Promise<number>
}

/** Slots and buckets as rows beside the instances, admitted by the claim statement itself: no second system, and nothing that a crash between two could leave behind. */
export class PostgresLimiter implements Limiter {
  readonly #db: Db
  constructor(db: Db) {
    this.#db = db
  }

  claim(params: ClaimParams): Promise<ClaimedRow[]> {
    return claim(this.#db, params)
  }
  claimById(params: Parameters<Limiter['claimById']>[0]): Promise<ClaimedRow[]> {
    return claimById(this.#db, params)
  }
  wake(keys: readonly Key[]): Promise<readonly string[]> {
    return wakeLines(this.#db, keys)
  }
  async waitedKeys(after: Key, limit: number): Promise<Key[]> {
    return (await nextWaitedKeys(this.#db, { ...after, limit })).map(({ project_id: projectId, key }) => ({ projectId, key }))
  }
  async promote(limit: number): Promise<DueRow | undefined> {
    return (await promoteThrottled(this.#db, { limit }))[0]
  }
  async releaseChanged(limit: number): Promise<{ count: number; queues: readonly string[] }> {
    const [released] = await releaseChangedRateLines(this.#db, { limit })
    return { count: released?.count ?? 0, queues: released?.queues ?? [] }
  }
  async removeIdle(idleMs: number, limit: number): Promise<number> {
    const [slots] = await removeIdleSlots(this.#db, { idleMs, limit })
    const [buckets] = await removeIdleBuckets(this.#db, { idleMs, limit })
    return Math.max(slots?.count ?? 0, buckets?.count ?? 0)
  }
}
