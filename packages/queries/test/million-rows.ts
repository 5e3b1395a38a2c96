import type { Db } from '@holdfast/schema'
import { sql } from 'kysely'

/**
 * A million instances as a busy deployment has them, inserted with every index present, then analysed: 700,000 done, 200,000 runnable without a
 * key over eight queues, 80,000 with keys of their own, 15,000 behind one serial key that executes, 5,000 executing, 50,000 scheduled far ahead, 50,000
 * awaiting with deadlines; 50,000 signals; 20,000 staged outcomes; 2,000 schedules and 50,000 runs of them.
 * The oldest rows are the twenty of a small project.
 *
 * The 15,000 have the lowest urgency of their queue: a serial backlog in front of others is walked by every claim, a known limit until rows that
 * are denied leave the pick index (LIMITS.md).
 */
export async function seedMillionRows(db: Db): Promise<void> {
  const run = async (text: string): Promise<void> => void (await sql.raw(text).execute(db))
  await run(`INSERT INTO holdfast.project (name) VALUES ('default'), ('other'), ('small')`)
  await run(`INSERT INTO holdfast.machine (name, version, queue) VALUES ('m', 1, 'default')`)
  await run(`INSERT INTO holdfast.instance (project_id, machine, queue) SELECT 3, 'm', 'small' FROM generate_series(1, 20)`)
  await run(`INSERT INTO holdfast.instance (project_id, status, machine, updated_at)
    SELECT 1 + i % 2, 'done', 'm', now() - i * interval '1 second' FROM generate_series(1, 700000) i`)
  await run(`INSERT INTO holdfast.instance (project_id, machine, queue, priority, eligible_at)
    SELECT 1 + i % 2, 'm', CASE i % 8 WHEN 0 THEN 'default' ELSE 'q' || i % 8 END, (i % 3)::smallint, now() - i * interval '1 ms'
    FROM generate_series(1, 200000) i`)
  await run(`INSERT INTO holdfast.instance (project_id, machine, queue, priority, concurrency_key, correlation_key, eligible_at)
    SELECT 1 + i % 2, 'm', CASE i % 2 WHEN 0 THEN 'default' ELSE 'keyed' END, (i % 3)::smallint, 'key-' || i, 'order-' || i, now() - i * interval '1 ms'
    FROM generate_series(1, 80000) i`)
  await run(`INSERT INTO holdfast.instance (project_id, machine, queue, priority, concurrency_key)
    SELECT 1, 'm', 'default', 9, 'hot' FROM generate_series(1, 15000)`)
  await run(`INSERT INTO holdfast.instance (project_id, machine, status, claim_epoch, claimed_by, lease_expires_at, concurrency_key)
    SELECT 1, 'm', 'executing', 1, 'w', now() + i * interval '10 ms' - interval '5 seconds', CASE WHEN i = 1 THEN 'hot' ELSE 'running-' || i END
    FROM generate_series(1, 5000) i`)
  await run(`INSERT INTO holdfast.instance (project_id, machine, status, priority, eligible_at)
    SELECT 1 + i % 2, 'm', 'scheduled', -5, now() + interval '30 days' + i * interval '1 second' FROM generate_series(1, 50000) i`)
  await run(`INSERT INTO holdfast.instance (project_id, machine, status, awaits, await_deadline, correlation_key)
    SELECT 1, 'm', 'awaiting_signal', '{go}', now() + interval '3 days' + i * interval '1 second', 'waits-' || i FROM generate_series(1, 50000) i`)
  await run(`INSERT INTO holdfast.signal (target_id, name, dedup_key)
    SELECT id, 'other', 'd' FROM holdfast.instance WHERE status = 'awaiting_signal'`)
  await run(`INSERT INTO holdfast.outcome (instance_id, claim_epoch, attempt, kind, worker, from_step)
    SELECT i, 1, 0, 'done', 'w', 'start' FROM generate_series(1, 20000) i`)
  await run(`INSERT INTO holdfast.transition (flushed_at, instance_id, claim_epoch, attempt, kind, to_status, from_step)
    SELECT now() + (i % 4) * interval '1 day', i, 1, 0, 'done', 'done', 'start' FROM generate_series(1, 80000) i`)
  await run(`INSERT INTO holdfast.schedule (project_id, name, cron, machine, next_at, due_at)
    SELECT 1 + i % 2, 's' || i, '0 3 * * *', 'm', now() + i * interval '1 minute', now() + i * interval '1 minute' FROM generate_series(1, 2000) i`)
  await run(`INSERT INTO holdfast.schedule_run (project_id, schedule, tick_at, instance_id, fired_at)
    SELECT 1 + i % 2, 's' || i % 2000, now() - i * interval '1 minute', i, now() - i * interval '1 minute' FROM generate_series(1, 50000) i`)
  await run(`INSERT INTO holdfast.api_token (project_id, access, sha256)
    SELECT 1, 'read_only', sha256(i::text::bytea) FROM generate_series(1, 2000) i`)
  await run('ANALYZE')
}
