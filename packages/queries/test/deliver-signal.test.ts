import type { InstanceId } from '@holdfast/contracts'
import { applyOutcomes, applyRiders, ridersOf, deliverSignalByKey } from '@holdfast/queries'
import { describe, expect, test } from 'vitest'
import { EngineRows, newProject, present, untilBlocked } from './engine-rows.ts'

test('a matching signal wakes the one that waits for it, keeps what it awaits, and names its queue', async () => {
  await using rows = await EngineRows.open()
  const id = await rows.parked(['go', 'stop'], {}, { timeoutMs: 60_000 })
  expect(await rows.signal(id, 'stop', { payload: '{"n":1}' })).toEqual({ target_id: id, duplicate: false, queue: 'default' })
  expect(await rows.raw(id)).toMatchObject({ status: 'runnable', awaits: ['go', 'stop'], step: 'end' })
  expect(await rows.inbox(id)).toHaveLength(1)
  const [claimed] = await rows.claim()
  expect(claimed).toMatchObject({ id, step: 'end', awaits: ['go', 'stop'] })
})

test('a signal with another name stays in the inbox and wakes nobody', async () => {
  await using rows = await EngineRows.open()
  const id = await rows.parked(['go'])
  expect(await rows.signal(id, 'other')).toEqual({ target_id: id, duplicate: false, queue: null })
  expect((await rows.raw(id)).status).toBe('awaiting_signal')
  expect(await rows.inbox(id)).toHaveLength(1)
})

test('R3: a signal may come before its target has run, while it executes, and while it is scheduled', async () => {
  await using rows = await EngineRows.open()
  const [runnable, scheduled] = await rows.insert({}, { delayMs: 60_000 })
  for (const id of [runnable, scheduled]) expect(await rows.signal(present(id), 'go')).toMatchObject({ target_id: id, queue: null })
  await rows.claim()
  await rows.signal(present(runnable), 'go')
  expect((await rows.raw(present(runnable))).status).toBe('executing')
  expect((await rows.raw(present(scheduled))).status).toBe('scheduled')
  expect(await rows.inbox(present(runnable))).toHaveLength(2)
  // The park finds them and is undone at once.
  expect((await rows.answer(present(runnable), 'await_signal', { step: 'end', awaits: ['go'], timeoutMs: 5_000 })).status).toBe('runnable')
})

test('a dedup key is good once, and stays so after the signal has been consumed (N10)', async () => {
  await using rows = await EngineRows.open()
  const id = await rows.parked(['go'])
  expect(await rows.signal(id, 'go', { dedupKey: 'payment-1' })).toMatchObject({ duplicate: false, queue: 'default' })
  expect(await rows.signal(id, 'go', { dedupKey: 'payment-1' })).toEqual({ target_id: id, duplicate: true, queue: null })
  const consumed = await rows.inbox(id)
  expect(consumed).toHaveLength(1)
  await rows.claim()
  await rows.answer(id, 'next', { step: 'after', consumed })
  expect(await rows.inbox(id)).toEqual([])
  expect(await rows.signal(id, 'go', { dedupKey: 'payment-1' })).toMatchObject({ duplicate: true })
  expect(await rows.signal(id, 'go', { dedupKey: 'payment-2' })).toMatchObject({ duplicate: false })
  expect(await rows.signal(id, 'go')).toMatchObject({ duplicate: false })
  expect(await rows.inbox(id)).toHaveLength(2)
})

test('two deliveries of one dedup key at once: the later one waits and is told that it is a duplicate', async () => {
  await using rows = await EngineRows.open()
  const id = await rows.parked(['go'])
  const first = await rows.db.startTransaction().execute()
  expect(await rows.signal(id, 'go', { dedupKey: 'd', db: first })).toMatchObject({ duplicate: false })
  const second = rows.signal(id, 'go', { dedupKey: 'd' })
  await untilBlocked(rows.db, 'engine.deliver_signal_by_id')
  await first.commit().execute()
  expect(await second).toMatchObject({ target_id: id, duplicate: true, queue: null })
  expect(await rows.inbox(id)).toHaveLength(1)
})

test('refused, with nothing written: ended, unknown, and of another project', async () => {
  await using rows = await EngineRows.open()
  const other = await newProject(rows.db, 'other')
  const refused = { target_id: null, duplicate: false, queue: null }
  for (const kind of ['done', 'fail', 'cancel'] as const) {
    const id = await rows.executing()
    await rows.answer(id, kind)
    expect(await rows.signal(id, 'go', { dedupKey: 'd' }), `after ${kind}`).toEqual(refused)
  }
  const live = await rows.parked(['go'])
  expect(await rows.signal(live, 'go', { projectId: other, dedupKey: 'd' })).toEqual(refused)
  expect(await rows.signal('999' as InstanceId, 'go')).toEqual(refused)
  expect((await rows.raw(live)).status).toBe('awaiting_signal')
  expect([await rows.count('signal'), await rows.count('signal_receipt')]).toEqual([0, 0])
})

test('by correlation key: the live one; an ended one is refused even where it still holds the key', async () => {
  await using rows = await EngineRows.open()
  const { db, projectId } = rows
  const id = await rows.parked(['go'], { correlationKey: 'order-1', correlationScope: ['done'] })
  const send = (key: string) => deliverSignalByKey(db, { projectId, correlationKey: key, name: 'go', payload: '{}' })
  expect(await send('order-1')).toEqual([{ target_id: id, duplicate: false, queue: 'default' }])
  expect(await send('order-2')).toEqual([{ target_id: null, duplicate: false, queue: null }])
  await rows.claim()
  await rows.answer(id, 'done')
  expect(await send('order-1')).toEqual([{ target_id: null, duplicate: false, queue: null }])
})

describe('R1: a signal against a park, in both orders', () => {
  test('the signal waits for the park and wakes it', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.stage({ instanceId: id, kind: 'await_signal', step: 'end', awaits: ['go'] })
    const trx = await rows.db.startTransaction().execute()
    // The flush, both of its statements, not committed yet.
    const [applied] = await applyOutcomes(trx, { afterSeq: '0', limit: 10 })
    await applyRiders(trx, present(ridersOf(present(applied))))
    const signal = rows.signal(id, 'go')
    await untilBlocked(rows.db, 'engine.deliver_signal_by_id')
    await trx.commit().execute()
    expect(await signal).toEqual({ target_id: id, duplicate: false, queue: 'default' })
    expect(await rows.raw(id)).toMatchObject({ status: 'runnable', claimed_by: null })
  })

  test('the park waits for the signal and finds it', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.stage({ instanceId: id, kind: 'await_signal', step: 'end', awaits: ['go'] })
    const trx = await rows.db.startTransaction().execute()
    expect(await rows.signal(id, 'go', { db: trx })).toMatchObject({ queue: null })
    const flush = rows.flush()
    await untilBlocked(rows.db, 'engine.apply_outcomes')
    await trx.commit().execute()
    expect(await flush).toMatchObject({ parked: [id], woken: ['default'] })
    expect(await rows.raw(id)).toMatchObject({ status: 'runnable', await_deadline: null, awaits: ['go'] })
  })
})

describe('N11: a signal against the end of its target, in both orders', () => {
  test('the signal waits for the end and is refused', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.stage({ instanceId: id, kind: 'done', result: '{}' })
    const trx = await rows.db.startTransaction().execute()
    await applyOutcomes(trx, { afterSeq: '0', limit: 10 })
    const signal = rows.signal(id, 'go')
    await untilBlocked(rows.db, 'engine.deliver_signal_by_id')
    await trx.commit().execute()
    expect(await signal).toEqual({ target_id: null, duplicate: false, queue: null })
    expect(await rows.inbox(id)).toEqual([])
  })

  test('the end waits for the signal and takes it along', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.stage({ instanceId: id, kind: 'done', result: '{}' })
    const trx = await rows.db.startTransaction().execute()
    expect(await rows.signal(id, 'go', { db: trx })).toMatchObject({ target_id: id })
    const flush = rows.flush()
    await untilBlocked(rows.db, 'engine.apply_outcomes')
    await trx.commit().execute()
    expect(await flush).toMatchObject({ ended: [id] })
    expect(await rows.inbox(id)).toEqual([])
  })
})
