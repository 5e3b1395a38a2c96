import {
  declareMachines,
  deleteFinished,
  endInstances,
  dropTransitionPartitions,
  ensureTransitionPartitions,
  fireAwaitDeadlines,
  heartbeat,
  promoteDue,
  reapExpired,
  releaseClaims,
} from '@holdfast/queries'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { EngineRows, present, untilBlocked } from './engine-rows.ts'

const reap = async (rows: EngineRows) =>
  (await endInstances(rows.db, (trx) => reapExpired(trx, { limit: 100, defaultMaxReclaims: 5 }))).rows

describe('leases', () => {
  test('an expired claim goes back, with its reclaim counted and its attempt not', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    expect(await reap(rows)).toEqual([]) // not expired yet
    await rows.expireLeases()
    expect(await reap(rows)).toMatchObject([{ id, queue: 'default', status: 'runnable', reclaims: 1, claimed_by: 'w1' }])
    expect(await rows.raw(id)).toMatchObject({ status: 'runnable', attempt: 0, claim_epoch: '1', claimed_by: null, lease_expires_at: null })
    expect(await rows.history(id)).toEqual([])
    expect(await reap(rows)).toEqual([])
  })

  test('a claim with a staged outcome is left alone for ever: the work is done', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.stage({ instanceId: id, kind: 'done' })
    await rows.expireLeases()
    expect(await reap(rows)).toEqual([])
    await rows.flush()
    expect((await rows.raw(id)).status).toBe('done')
  })

  test('N8: a claim lost more often than the machine allows ends in crash_loop, with nothing left behind', async () => {
    await using rows = await EngineRows.open()
    await declareMachines(rows.db, { machines: [{ name: 'm', version: 1, queue: 'default', maxReclaims: 2 }] })
    // Woken by a signal before its deadline: the row still carries the deadline and the names.
    const id = await rows.parked(['go'], {}, { timeoutMs: 60_000 })
    await rows.signal(id, 'go')
    for (const lost of [1, 2, 3]) {
      expect(await rows.claim()).toHaveLength(1)
      await rows.expireLeases()
      expect(await reap(rows)).toMatchObject([{ id, reclaims: lost, status: lost === 3 ? 'failed' : 'runnable' }])
    }
    const row = await rows.raw(id)
    expect(row).toMatchObject({ status: 'failed', error: { code: 'crash_loop' }, claimed_by: null, lease_expires_at: null })
    expect(row).toMatchObject({ await_deadline: null, awaits: null })
    expect(await rows.inbox(id)).toEqual([])
    expect((await rows.history(id)).at(-1)).toMatchObject({
      kind: 'fail',
      to_status: 'failed',
      worker: 'w1',
      error: { code: 'crash_loop' },
    })
  })

  test('an applied outcome forgets earlier losses; an undeclared machine has the default', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    for (let lost = 0; lost < 5; lost += 1) {
      await rows.expireLeases()
      expect(await reap(rows)).toMatchObject([{ status: 'runnable' }])
      await rows.claim()
    }
    await rows.answer(id, 'next', { step: 's' })
    await rows.claim()
    await rows.expireLeases()
    expect(await reap(rows)).toMatchObject([{ status: 'runnable', reclaims: 1 }])
  })

  test('a heart-beat extends what stands and names what is lost', async () => {
    await using rows = await EngineRows.open()
    const ids = await rows.insert({}, {}, {})
    await rows.claim({ leaseMs: 1_000 })
    const [standing, again, gone] = ids.map(present)
    await rows.answer(present(gone), 'done')
    await sql`UPDATE holdfast.instance SET claim_epoch = 2 WHERE id = ${again}::bigint`.execute(rows.db)
    const lost = await heartbeat(rows.db, { ids, epochs: ['1', '1', '1'], leaseMs: 60_000 })
    expect(lost).toEqual([
      { id: again, claim_epoch: '1', cancelling: false },
      { id: gone, claim_epoch: '1', cancelling: false },
    ])
    expect((await rows.raw(present(standing))).lease_in_ms).toBeGreaterThan(50_000)
    expect((await rows.raw(present(again))).lease_in_ms).toBeLessThan(1_001)
  })

  test('R16: heart-beat, reaper and release skip a row that somebody holds, and report nothing about it', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.expireLeases()
    const holder = await rows.db.startTransaction().execute()
    await sql`SELECT FROM holdfast.instance WHERE id = ${id}::bigint FOR NO KEY UPDATE`.execute(holder)
    expect(await reap(rows)).toEqual([])
    expect(await heartbeat(rows.db, { ids: [id], epochs: ['1'], leaseMs: 60_000 })).toEqual([])
    expect(await releaseClaims(rows.db, { ids: [id], epochs: ['1'] })).toEqual([])
    await holder.rollback().execute()
    expect((await rows.raw(id)).lease_in_ms).toBeLessThan(0)
    expect(await heartbeat(rows.db, { ids: [id], epochs: ['1'], leaseMs: 60_000 })).toEqual([])
    expect(await reap(rows)).toEqual([]) // R20: renewed in time
  })

  test('a claim given back is runnable at once, uncounted; not one whose outcome is staged, nor one that is over', async () => {
    await using rows = await EngineRows.open()
    const ids = await rows.insert({}, { queue: 'default' }, {})
    await rows.claim()
    const [unrun, staged, over] = ids.map(present)
    await rows.stage({ instanceId: present(staged), kind: 'done' })
    await sql`UPDATE holdfast.instance SET claim_epoch = 2 WHERE id = ${over}::bigint`.execute(rows.db)
    expect(await releaseClaims(rows.db, { ids, epochs: ['1', '1', '1'] })).toMatchObject([{ id: unrun, queue: 'default' }])
    expect(await rows.raw(present(unrun))).toMatchObject({ status: 'runnable', attempt: 0, reclaims: 0, claimed_by: null })
    expect((await rows.raw(present(over))).status).toBe('executing')
  })
})

describe('timers', () => {
  test('what is due becomes runnable, at most the limit, and the next due time is told', async () => {
    await using rows = await EngineRows.open()
    const ids = await rows.insert({ delayMs: 60_000 }, { delayMs: 60_000, queue: 'q' }, { delayMs: 90_000 })
    expect(await promoteDue(rows.db, { limit: 10 })).toMatchObject([{ count: 0, queues: null }])
    await sql`UPDATE holdfast.instance SET eligible_at = now() - id * interval '1 ms' WHERE id <= ${ids[1]}::bigint`.execute(rows.db)
    expect(await promoteDue(rows.db, { limit: 1 })).toMatchObject([{ count: 1, queues: ['q'] }])
    const [due] = await promoteDue(rows.db, { limit: 10 })
    expect(due).toMatchObject({ count: 1, queues: ['default'] })
    expect(due?.next_in_ms).toBeGreaterThan(80_000)
    expect(due?.next_in_ms).toBeLessThanOrEqual(90_000)
    expect((await rows.raw(present(ids[2]))).status).toBe('scheduled')
  })

  test('a deadline wakes, keeps the names (R29), and a signal that follows is not a second wake', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.parked(['go'], {}, { timeoutMs: 60_000 })
    const forever = await rows.parked(['go'])
    expect((await fireAwaitDeadlines(rows.db, { limit: 10 }))[0]).toMatchObject({ count: 0 })
    await sql`UPDATE holdfast.instance SET await_deadline = now() WHERE id = ${id}::bigint`.execute(rows.db)
    expect(await fireAwaitDeadlines(rows.db, { limit: 10 })).toEqual([{ count: 1, queues: ['default'], next_in_ms: null }])
    expect(await rows.raw(id)).toMatchObject({ status: 'runnable', awaits: ['go'], await_deadline: null, step: 'end' })
    expect((await rows.raw(forever)).status).toBe('awaiting_signal')
    expect(await rows.signal(id, 'go')).toMatchObject({ target_id: id, queue: null })
    expect(await rows.claim()).toMatchObject([{ id, awaits: ['go'] }])
    expect(await rows.inbox(id)).toHaveLength(1)
  })

  test('a signal that is waking the row makes the deadline pass it by', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.parked(['go'], {}, { timeoutMs: 60_000 })
    await sql`UPDATE holdfast.instance SET await_deadline = now() WHERE id = ${id}::bigint`.execute(rows.db)
    const trx = await rows.db.startTransaction().execute()
    await rows.signal(id, 'go', { db: trx })
    expect((await fireAwaitDeadlines(rows.db, { limit: 10 }))[0]).toMatchObject({ count: 0 })
    await trx.commit().execute()
    expect((await fireAwaitDeadlines(rows.db, { limit: 10 }))[0]).toMatchObject({ count: 0 })
    expect((await rows.raw(id)).status).toBe('runnable')
  })
})

describe('retention', () => {
  test('deletes what ended long enough ago, bounded, with inbox and receipts; nothing live', async () => {
    await using rows = await EngineRows.open()
    const ended = await rows.insert({}, {}, {})
    for (const id of ended) await rows.signal(id, 'go', { dedupKey: 'd' })
    await rows.claim()
    await rows.stage(...ended.map((instanceId) => ({ instanceId, kind: 'done' as const })))
    await rows.flush()
    const [live] = await rows.insert({})
    expect(await deleteFinished(rows.db, { retentionMs: 60_000, limit: 10 })).toEqual([{ count: 0 }])
    await sql`UPDATE holdfast.instance SET updated_at = now() - interval '1 hour'`.execute(rows.db)
    expect(await deleteFinished(rows.db, { retentionMs: 60_000, limit: 2 })).toEqual([{ count: 2 }])
    expect(await deleteFinished(rows.db, { retentionMs: 60_000, limit: 2 })).toEqual([{ count: 1 }])
    expect([await rows.count('instance'), await rows.count('signal_receipt')]).toEqual([1, 0])
    expect((await rows.get(present(live))).status).toBe('runnable')
  })

  test('R23: a child stays as long as its parent is live; a parent that goes leaves its child', async () => {
    await using rows = await EngineRows.open()
    const [parent, child, orphan] = await rows.insert({}, {}, {})
    await rows.claim()
    await sql`UPDATE holdfast.instance SET parent_id = ${parent}::bigint WHERE id IN (${child}::bigint, ${orphan}::bigint)`.execute(rows.db)
    await rows.answer(present(child), 'done')
    const sweep = () => deleteFinished(rows.db, { retentionMs: -60_000, limit: 10 })
    expect(await sweep()).toEqual([{ count: 0 }])
    await rows.answer(present(parent), 'done')
    expect(await sweep()).toEqual([{ count: 2 }])
    expect(await rows.get(present(orphan))).toMatchObject({ status: 'executing' })
  })

  test('an end that somebody is reading with a lock is left for the next sweep', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.answer(id, 'done')
    const holder = await rows.db.startTransaction().execute()
    await sql`SELECT FROM holdfast.instance WHERE id = ${id}::bigint FOR KEY SHARE`.execute(holder)
    expect(await deleteFinished(rows.db, { retentionMs: -60_000, limit: 10 })).toEqual([{ count: 0 }])
    await holder.rollback().execute()
    expect(await deleteFinished(rows.db, { retentionMs: -60_000, limit: 10 })).toEqual([{ count: 1 }])
  })

  test('history partitions: made ahead, once, moving in what the default one caught; dropped by age', async () => {
    await using rows = await EngineRows.open()
    const insert = (day: string) =>
      sql`INSERT INTO holdfast.transition (flushed_at, instance_id, claim_epoch, attempt, kind, to_status, from_step)
        VALUES (now() + ${day}::interval, 1, 1, 0, 'done', 'done', 's')`.execute(rows.db)
    expect(await ensureTransitionPartitions(rows.db, { daysAhead: 3 })).toEqual([{ made: 0 }])
    await insert('6 days')
    expect(await ensureTransitionPartitions(rows.db, { daysAhead: 6 })).toEqual([{ made: 3 }])
    const inDefault = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.transition_default`.execute(rows.db)
    expect([await rows.count('transition'), inDefault.rows[0]?.n]).toEqual([1, 0])
    // As if twenty days had gone by: an old partition, and one within the days to keep.
    for (const age of [20, 5]) {
      await sql`DO ${sql.raw(`$$ DECLARE day date := (now() AT TIME ZONE 'UTC')::date - ${age}; BEGIN
        EXECUTE format('CREATE TABLE holdfast.%I PARTITION OF holdfast.transition FOR VALUES FROM (%L) TO (%L)', 'transition_' || to_char(day, 'YYYYMMDD'),
          day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC'); END $$`)}`.execute(rows.db)
      await insert(`-${age} days`)
    }
    expect(await dropTransitionPartitions(rows.db, { keepDays: 14 })).toEqual([{ dropped: 1 }])
    expect(await rows.count('transition')).toBe(2)
  })

  test('a partition is made under a flush that is writing to the default one', async () => {
    await using rows = await EngineRows.open()
    await sql`DO ${sql.raw(`$$ BEGIN EXECUTE 'DROP TABLE holdfast.transition_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD'); END $$`)}`.execute(
      rows.db,
    )
    const flush = await rows.db.startTransaction().execute()
    await sql`INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step)
      VALUES (1, 1, 0, 'done', 'done', 's')`.execute(flush)
    const made = ensureTransitionPartitions(rows.db, { daysAhead: 0 })
    await untilBlocked(rows.db, 'engine.ensure_transition_partitions')
    await flush.commit().execute()
    expect(await made).toEqual([{ made: 1 }])
    expect(await rows.count('transition')).toBe(1)
  })
})
