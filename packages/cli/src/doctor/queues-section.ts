import { getQueueDepths, listUnclaimable, type QueueDepthRow } from '@holdfast/queries'
import { age } from '../answer.ts'
import { plural } from './figures.ts'
import type { Finding, SectionDefinition } from './finding.ts'

/** A backlog may be meant; five minutes of it are worth a look. */
const WAITING_MS = 300_000
/** Schedulers of a new version declare their machines as they start. */
const UNCLAIMABLE_MS = 60_000

/** How long work has been waiting, and why. */
export const queuesSection: SectionDefinition = {
  name: 'queues',
  title: 'queues',
  async examine({ db }) {
    const depths = await getQueueDepths(db, { projectId: null })
    const unclaimable = await listUnclaimable(db, { overdueMs: UNCLAIMABLE_MS })
    const runnable = depths.filter(({ status, count }) => status === 'runnable' && count > 0)
    return {
      findings: [
        ...unclaimable.map(
          ({ machine, version, count, oldest_ms: oldest }): Finding => ({
            code: 'unclaimable',
            severity: 'warning',
            what: `${plural(count, 'runnable instance')} of ${machine}/${version} can be run by nobody: no scheduler has had it for five minutes; the oldest has waited ${age(oldest)}`,
            value: count,
            remedy: `deploy a scheduler whose HOLDFAST_MACHINES export ${machine} at version ${version}, or cancel them`,
          }),
        ),
        ...runnable.flatMap(queueFindings),
      ],
      facts: [`oldest runnable: ${runnable.map(({ queue, oldest_ms: oldest }) => `${queue} ${age(oldest)}`).join(', ') || 'none'}`],
    }
  },
}

function queueFindings({ queue, paused, count, unclaimable, oldest_ms: oldest }: QueueDepthRow): readonly Finding[] {
  if (paused) {
    const what = `the queue ${queue} is paused with ${plural(count, 'runnable instance')} in it`
    return [{ code: 'queue_paused', severity: 'warning', what, value: count, remedy: `holdfast queues resume ${queue}, when it is time` }]
  }
  if (oldest === null || oldest < WAITING_MS || unclaimable === count) return []
  return [
    {
      code: 'queue_waiting',
      severity: 'warning',
      what: `the oldest of ${plural(count, 'runnable instance')} in the queue ${queue} has waited ${age(oldest)}`,
      value: oldest,
      remedy: 'see that a scheduler serves it (HOLDFAST_QUEUES, HOLDFAST_MACHINES); if one does, add replicas or steps at once',
    },
  ]
}
