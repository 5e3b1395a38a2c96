import type { InstanceId } from '@holdfast/contracts'
import type { Db } from '@holdfast/schema'
import { isLostRace } from '../lost-race.ts'
import type { Executor } from '../statement.ts'
import { applyRiders, ridersOfEnded } from './flush-outcomes.ts'
import { type Key, wakeLines } from './waiters.ts'

/** An instance whose claim or life is over, or that was asked to stop (`executing`). */
export interface EndedRow {
  readonly id: InstanceId
  readonly project_id: string
  readonly status: string
  readonly concurrency_key: string | null
  readonly parent_id: string | null
  readonly parent_epoch: string | null
}

/** Lost races in a row before the error is the caller's: each one means that somebody else got on. */
const ATTEMPTS = 10

/**
 * Ends instances by `end`, with what follows in the same transaction (inboxes, parents, children) and after it (those who wait for their keys). Answers what `end`
 * answered, and the queues that have got something to run. `end` is called again when its transaction loses a race. `wake` wakes those who wait for keys that are free now;
 * default: by the statement of this package.
 */
export async function endInstances<Row extends EndedRow>(
  db: Db,
  end: (trx: Executor) => Promise<readonly Row[]>,
  wake: (keys: readonly Key[]) => Promise<readonly string[]> = (keys) => wakeLines(db, keys),
): Promise<{ readonly rows: readonly Row[]; readonly queues: readonly string[] }> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      const { rows, queues } = await db.transaction().execute(async (trx) => {
        const ended = await end(trx)
        const riders = ridersOfEnded(ended)
        const [followed] = riders === undefined ? [] : await applyRiders(trx, riders)
        return { rows: ended, queues: followed?.queues ?? [] }
      })
      const freed = rows.filter((row) => row.status !== 'executing').flatMap(keyOf)
      const woken = freed.length === 0 ? [] : await wake(freed)
      return { rows, queues: [...new Set([...queues, ...woken])] }
    } catch (error) {
      if (!isLostRace(error) || attempt === ATTEMPTS) throw error
    }
  }
}

const keyOf = ({ project_id, concurrency_key }: EndedRow): Key[] =>
  concurrency_key === null ? [] : [{ projectId: project_id as Key['projectId'], key: concurrency_key }]
