import type { CatchUp } from '@holdfast/contracts'
import type { CronClock } from './cron-clock.ts'

/**
 * How late a tick may be without having been missed: deployments, failovers and restarts of the database pass in less, and a daily run is not to be lost to one.
 */
const ON_TIME_MS = 60_000

export interface DueTicks {
  /** Ticks to fire, oldest first. */
  readonly ticks: readonly Date[]
  /** The first tick that is not dealt with by this. */
  readonly nextAt: Date
  /** The newest tick that was missed and is not fired. */
  readonly missedAt?: Date | undefined
}

/**
 * Which of the ticks from `dueAt` to `now` are to be fired, and where the schedule goes on; undefined if no tick ever comes again.
 *
 * Not more than `limit` with `all`; then `nextAt` is still due and the rest comes in the next pass, so that no tick is lost.
 */
export function dueTicks(
  clock: CronClock,
  { dueAt, now, catchUp, limit }: { readonly dueAt: Date; readonly now: Date; readonly catchUp: CatchUp; readonly limit: number },
): DueTicks | undefined {
  if (catchUp === 'all') {
    const ticks = [dueAt]
    for (;;) {
      const nextAt = clock.after(ticks.at(-1) as Date)
      if (nextAt === undefined || nextAt > now || ticks.length === limit) return nextAt === undefined ? undefined : { ticks, nextAt }
      ticks.push(nextAt)
    }
  }
  const following = clock.after(dueAt)
  if (following === undefined) return undefined
  const onTime = (tick: Date): boolean => catchUp === 'one' || now.getTime() - tick.getTime() <= ON_TIME_MS
  if (following > now) return onTime(dueAt) ? { ticks: [dueAt], nextAt: following } : { ticks: [], nextAt: following, missedAt: dueAt }
  const nextAt = clock.after(now)
  if (nextAt === undefined) return undefined
  const newest = clock.before(nextAt) ?? following
  if (!onTime(newest)) return { ticks: [], nextAt, missedAt: newest }
  const missedAt = clock.before(newest) ?? dueAt
  return { ticks: [newest], nextAt, missedAt: missedAt < dueAt ? dueAt : missedAt }
}
