import { sql } from 'kysely'
import { type Invariant, invariant, limit } from './invariant.ts'

/**
 * What must hold of cron schedules. That a tick is late is no matter of these: a deployment without schedulers, or a machine that nobody has declared, makes it so; the schedule
 * itself says it (`last_error`, and a `next_at` that has passed).
 */
export const scheduleInvariants: readonly Invariant[] = [
  invariant(
    'S1',
    'broken',
    'No tick of a schedule has been fired twice.',
    () => sql`
SELECT project_id, schedule, tick_at, array_agg(instance_id) AS instances FROM holdfast.schedule_run
GROUP BY project_id, schedule, tick_at HAVING count(*) > 1 ${limit}`,
  ),
  invariant(
    'S2',
    'broken',
    'An instance is the run of one tick, and of its own project.',
    () => sql`
SELECT r.instance_id, array_agg(r.tick_at) AS ticks FROM holdfast.schedule_run r LEFT JOIN holdfast.instance g ON g.id = r.instance_id
WHERE r.instance_id IS NOT NULL GROUP BY r.instance_id HAVING count(*) > 1 OR bool_or(g.project_id <> r.project_id) ${limit}`,
  ),
  invariant(
    'S3',
    'broken',
    'The next tick of a schedule comes after its last one, and its last one is the newest that has made an instance.',
    () => sql`
SELECT s.project_id, s.name, s.next_at, s.last_at, r.tick_at FROM holdfast.schedule s
LEFT JOIN LATERAL (
  SELECT max(r.tick_at) AS tick_at FROM holdfast.schedule_run r
  WHERE r.project_id = s.project_id AND r.schedule = s.name AND r.instance_id IS NOT NULL AND r.fired_at > s.created_at
) r ON true
WHERE s.next_at <= s.last_at OR r.tick_at > s.last_at ${limit}`,
  ),
]
