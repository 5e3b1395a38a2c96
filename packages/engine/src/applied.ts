import { Channels, type ProjectId } from '@holdfast/contracts'
import { type AppliedRow, applyRiders, type Executor, type Key, ridersOf } from '@holdfast/queries'
import { type Hints, TIMER_HINT_WITHIN_MS } from './hints.ts'
import type { Limiter } from './limiter.ts'
import type { Logger } from './logger.ts'

/** What is needed after a commit: to wake and to hint. */
export interface Announcing {
  readonly limiter: Limiter
  readonly hints: Hints
  readonly logger: Logger
}

/** The second statement of a transaction that has applied outcomes, where there is anything for it to do. */
export async function followApplied(trx: Executor, applied: AppliedRow | undefined): Promise<AppliedRow> {
  if (applied === undefined) throw new Error('applying outcomes answered no row')
  const riders = ridersOf(applied)
  if (riders === undefined) return applied
  const [followed] = await applyRiders(trx, riders)
  return followed?.queues == null ? applied : { ...applied, queues: [...new Set([...(applied.queues ?? []), ...followed.queues])] }
}

/** After the commit: those who wait for the keys that are free now, and a hint to whoever may sleep. Never fails: what is missed here, sweeps and polls find. */
export async function announceApplied({ limiter, hints, logger }: Announcing, applied: AppliedRow): Promise<void> {
  for (const queue of applied.queues ?? []) hints.send(Channels.runnable, queue)
  if (applied.due_in_ms !== null && applied.due_in_ms < TIMER_HINT_WITHIN_MS)
    hints.send(Channels.timer, String(Math.max(0, applied.due_in_ms)))
  if (applied.freed !== null) {
    await wakeFreed(
      { limiter, hints, logger },
      applied.freed.map(({ project_id, key }) => ({ projectId: project_id as ProjectId, key })),
    )
  }
}

/** Wakes those who wait for these keys, and hints at their queues. Never fails: the reaper's sweep finds those that were missed. */
export async function wakeFreed({ limiter, hints, logger }: Announcing, keys: readonly Key[]): Promise<void> {
  if (keys.length === 0) return
  try {
    for (const queue of await limiter.wake(keys)) hints.send(Channels.runnable, queue)
  } catch (error) {
    logger.warn({ err: error, keys: keys.length }, 'those who wait for freed keys could not be woken; the reaper will')
  }
}
