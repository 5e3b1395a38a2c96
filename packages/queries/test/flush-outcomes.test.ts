import { type InstanceId, InstanceStatuses, OutcomeKinds } from '@holdfast/contracts'
import { applyOutcomes, hasOutcomes, peekOutcome, quarantineOutcome, reapExpired } from '@holdfast/queries'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { EngineRows, present } from './engine-rows.ts'

describe('staging', () => {
  test('answers what is in; a claim that is over and a second outcome of one claim are dropped', async () => {
    await using rows = await EngineRows.open()
    const [fresh, reaped, doubled] = await rows.insert({}, {}, {})
    await rows.claim()
    await sql`UPDATE holdfast.instance SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL WHERE id = ${reaped}::bigint`.execute(
      rows.db,
    )
    const ids = [present(fresh), present(reaped), present(doubled)]
    expect((await rows.stage(...ids.map((instanceId) => ({ instanceId, kind: 'done' as const, result: '1' })))).toSorted()).toEqual([
      fresh,
      doubled,
    ])
    expect(await rows.stage({ instanceId: present(doubled), kind: 'done', result: '2' })).toEqual([])
    await rows.flush()
    expect((await rows.raw(present(doubled))).result).toBe(1)
  })

  test('an outcome of an earlier epoch is dropped although the same worker has claimed again (R5)', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.expireLeases()
    await reapExpired(rows.db, { limit: 10, defaultMaxReclaims: 5 })
    expect((await rows.claim())[0]).toMatchObject({ id, claim_epoch: '2', reclaims: 1 })
    expect(await rows.stage({ instanceId: id, kind: 'done', claimEpoch: '1' })).toEqual([])
    expect(await rows.stage({ instanceId: id, kind: 'done', claimEpoch: '2' })).toEqual([id])
  })

  test('a shape that could not be applied is refused when it is staged, with its neighbours', async () => {
    await using rows = await EngineRows.open()
    const [a, b] = await rows.insert({}, {})
    await rows.claim()
    const good = { instanceId: present(a), kind: 'done' as const }
    for (const bad of [
      { kind: 'next' as const },
      { kind: 'sleep' as const, step: 's' },
      { kind: 'retry' as const },
      { kind: 'await_signal' as const, step: 's', awaits: [] },
      { kind: 'fail' as const, error: undefined },
      { kind: 'cancel' as const, result: '{}' },
      { kind: 'done' as const, error: '{}' },
      { kind: 'retry' as const, delayMs: -1 },
    ]) {
      await expect(rows.stage(good, { instanceId: present(b), ...bad })).rejects.toThrow(/outcome_shape|outcome_delay_range/)
    }
    expect(await rows.count('outcome')).toBe(0)
  })
})

/** One instance in the most entangled state a claim can have: awaited, with a deadline behind it, retried and reclaimed before. */
async function entangled(rows: EngineRows): Promise<InstanceId> {
  const id = await rows.parked(['go'], { concurrencyKey: 'serial', state: '{"kept":true}', correlationKey: 'c' }, { timeoutMs: 60_000 })
  await rows.signal(id, 'go')
  await rows.claim()
  await rows.answer(id, 'retry', { delayMs: 0, error: '{"code":"step_failed","message":"once"}' })
  await rows.claim()
  await rows.expireLeases()
  await reapExpired(rows.db, { limit: 10, defaultMaxReclaims: 5 })
  await rows.claim()
  expect(await rows.raw(id)).toMatchObject({ status: 'executing', attempt: 1, reclaims: 1, awaits: ['go'], step: 'end' })
  return id
}

/** What every applied outcome does. */
const over = { claimed_by: null, lease_expires_at: null, reclaims: 0, concurrency_key: 'serial' }

describe('each kind, each column', () => {
  test('next', async () => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    const consumed = await rows.inbox(id)
    const row = await rows.answer(id, 'next', { step: 'then', state: '{"new":1}', consumed })
    expect(row).toMatchObject({ ...over, status: 'runnable', step: 'then', state: { new: 1 }, result: null, error: null, attempt: 0 })
    expect(row).toMatchObject({ awaits: null, await_deadline: null, correlation_guard: 'c' })
    expect(Math.abs(row.eligible_in_ms)).toBeLessThan(5_000)
    expect(await rows.inbox(id)).toEqual([])
  })

  test('next without a state keeps the one there is', async () => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    expect(await rows.answer(id, 'next', { step: 'then' })).toMatchObject({ state: { kept: true } })
  })

  test('sleep', async () => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    const consumed = await rows.inbox(id)
    const row = await rows.answer(id, 'sleep', { step: 'then', delayMs: 60_000, consumed })
    expect(row).toMatchObject({ ...over, status: 'scheduled', step: 'then', attempt: 0, awaits: null, await_deadline: null })
    expect(row.eligible_in_ms).toBeGreaterThan(55_000)
    expect(row.eligible_in_ms).toBeLessThanOrEqual(60_000)
    expect(await rows.inbox(id)).toEqual([])
  })

  test('sleep of nothing is runnable at once', async () => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    expect(await rows.answer(id, 'sleep', { step: 'then', delayMs: 0 })).toMatchObject({ ...over, status: 'runnable', step: 'then' })
  })

  test('retry keeps the step, what it awaits and its signals', async () => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    const error = { code: 'step_failed', message: 'no' }
    const consumed = await rows.inbox(id)
    const row = await rows.answer(id, 'retry', { delayMs: 60_000, error: JSON.stringify(error), state: '{"n":2}', consumed })
    expect(row).toMatchObject({ ...over, status: 'scheduled', step: 'end', state: { n: 2 }, error, attempt: 2, awaits: ['go'] })
    expect(row.await_deadline).toBeNull()
    expect(row.eligible_in_ms).toBeGreaterThan(55_000)
    expect(await rows.inbox(id)).toEqual(consumed)
    const [claimed] = await rows.claim()
    expect(claimed).toBeUndefined()
  })

  test('await_signal arms its deadline, consumes nothing, and forgets the error', async () => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    const presented = await rows.inbox(id)
    const row = await rows.answer(id, 'await_signal', {
      step: 'then',
      awaits: ['a', 'b'],
      timeoutMs: 30_000,
      presented,
      consumed: presented,
    })
    expect(row).toMatchObject({ ...over, status: 'awaiting_signal', step: 'then', attempt: 0, awaits: ['a', 'b'], error: null })
    expect(row.deadline_in_ms).toBeGreaterThan(25_000)
    expect(row.deadline_in_ms).toBeLessThanOrEqual(30_000)
    expect(await rows.inbox(id)).toEqual(presented)
  })

  test('await_signal without a timeout has no deadline', async () => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    expect(await rows.answer(id, 'await_signal', { step: 'then', awaits: ['a'] })).toMatchObject({ await_deadline: null })
  })

  test.each([
    ['done', 'done', { result: '{"sum":3}' }, { result: { sum: 3 }, error: null, correlation_guard: null }],
    ['fail', 'failed', { error: '{"code":"failed","message":"x"}' }, { result: null, error: { code: 'failed', message: 'x' } }],
    ['cancel', 'cancelled', { error: '{"code":"cancelled","message":"x"}' }, { result: null, error: { code: 'cancelled', message: 'x' } }],
  ] as const)('%s ends it: step, state, attempt and time stay, the inbox goes', async (kind, status, given, expected) => {
    await using rows = await EngineRows.open()
    const id = await entangled(rows)
    await rows.signal(id, 'unread')
    const before = await rows.raw(id)
    const row = await rows.answer(id, kind, given)
    expect(row).toMatchObject({
      ...over,
      ...expected,
      status,
      step: 'end',
      state: { kept: true },
      attempt: 1,
      awaits: null,
      await_deadline: null,
    })
    expect(row.eligible_at).toEqual(before.eligible_at)
    expect(row.correlation_guard).toBeNull()
    expect(await rows.inbox(id)).toEqual([])
  })

  test.each([
    ['await_signal', { awaits: ['a'], timeoutMs: 30_000 }],
    ['spawn', { children: '[{"machine":"m"}]', timeoutMs: 30_000 }],
    ['sleep', { delayMs: 30_000 }],
    ['next', {}],
  ] as const)('%s to a step whose rate limit there is not fails it, and it waits for nothing', async (kind, given) => {
    await using rows = await EngineRows.open()
    const row = await rows.answer(await rows.executing(), kind, { step: 'then', rateKey: 'nowhere', ...given })
    expect(row).toMatchObject({
      status: 'failed',
      awaits: null,
      await_deadline: null,
      children_pending: 0,
      error: { code: 'invalid_limit' },
    })
    expect(await rows.count('instance')).toBe(1)
  })

  test('a move that the table of contracts does not have fails the test that makes it', async () => {
    await using rows = await EngineRows.open()
    const [id] = await rows.insert({})
    const move = (status: string) =>
      sql`UPDATE holdfast.instance SET status = ${status}::holdfast.instance_status WHERE id = ${id}::bigint`.execute(rows.db)
    await expect(move('done')).rejects.toThrow('contracts forbid runnable to done')
    await move('cancelled')
  })
})

describe('applying', () => {
  test('takes from the front, at most the limit, and says how far it got', async () => {
    await using rows = await EngineRows.open()
    const ids = await rows.insert({}, {}, {})
    await rows.claim()
    expect(await hasOutcomes(rows.db, {})).toEqual([{ waiting: false }])
    for (const instanceId of ids) await rows.stage({ instanceId, kind: 'done' })
    expect(await hasOutcomes(rows.db, {})).toEqual([{ waiting: true }])
    const first = await rows.flush(2)
    expect(first).toMatchObject({ taken: 2, applied: 2 })
    expect(new Set(first.ended)).toEqual(new Set(ids.slice(0, 2)))
    const [nothing] = await applyOutcomes(rows.db, { afterSeq: '1000', limit: 10 })
    expect(nothing).toMatchObject({ taken: 0, applied: 0, max_seq: null, ended: null, parked: null, queues: null, due_in_ms: null })
    expect(await rows.flush()).toMatchObject({ taken: 1, applied: 1, max_seq: String(Number(first.max_seq) + 1) })
  })

  test('R4: a stale outcome of any kind is counted, dropped, and changes nothing', async () => {
    await using rows = await EngineRows.open()
    const stale = { step: 's', awaits: ['go'], delayMs: 0, state: '{"bad":1}', attempt: 9 }
    for (const kind of OutcomeKinds) {
      const id = await rows.executing({ state: '{"good":1}' })
      await rows.signal(id, 'go')
      const consumed = await rows.inbox(id)
      await rows.stage({ instanceId: id, kind, ...stale, consumed })
      // The reaper leaves it alone; the claim is taken away by force, and another worker claims.
      await sql`UPDATE holdfast.instance SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL WHERE id = ${id}::bigint`.execute(
        rows.db,
      )
      const runnable = await rows.raw(id)
      expect(await rows.flush(), `a stale ${kind}`).toMatchObject({
        taken: 1,
        applied: 0,
        ended: null,
        consumed: null,
        parked: null,
        queues: null,
      })
      expect(await rows.raw(id)).toMatchObject({ status: 'runnable', updated_at: runnable.updated_at, state: { good: 1 }, attempt: 0 })
      expect(await rows.inbox(id)).toEqual(consumed)
      expect(await rows.history(id)).toEqual([])
      await rows.claim()
      await rows.answer(id, 'done')
    }
    expect(await rows.count('outcome')).toBe(0)
  })

  test('two flushers share the outcomes and never wait for one another', async () => {
    await using rows = await EngineRows.open()
    const ids = await rows.insert({}, {}, {})
    await rows.claim()
    for (const instanceId of ids) await rows.stage({ instanceId, kind: 'done' })
    const trx = await rows.db.startTransaction().execute()
    const [one] = await applyOutcomes(trx, { afterSeq: '0', limit: 2 })
    expect(await rows.flush()).toMatchObject({ taken: 1, applied: 1 })
    expect(await rows.flush()).toMatchObject({ taken: 0 })
    await trx.rollback().execute()
    expect(one).toMatchObject({ taken: 2 })
    expect(await rows.flush()).toMatchObject({ taken: 2, applied: 2 }) // a flush that died has taken nothing
  })

  test('consumes exactly the ids that were handed over; a signal that came later stays', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.parked(['go'])
    await rows.signal(id, 'go')
    await rows.signal(id, 'other')
    const [handed, other] = await rows.inbox(id)
    await rows.claim()
    await rows.signal(id, 'go')
    await rows.answer(id, 'next', { step: 's', consumed: [present(handed)] })
    expect(await rows.inbox(id)).toEqual([other, String(Number(other) + 1)])
  })

  test('R2: a pack does not spin on what it was shown; a new signal wakes it, and so does a lower id that commits later', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.parked(['a', 'b'])
    // Draws the lower id, and commits last.
    const early = await rows.db.startTransaction().execute()
    await sql`SELECT nextval(pg_get_serial_sequence('holdfast.signal', 'id'))`.execute(early)
    const { rows: drawn } = await sql<{ id: string }>`SELECT currval(pg_get_serial_sequence('holdfast.signal', 'id')) AS id`.execute(early)
    await rows.signal(id, 'a')
    const presented = await rows.inbox(id)
    expect(Number(presented[0])).toBeGreaterThan(Number(drawn[0]?.id))
    await rows.claim()
    await sql`INSERT INTO holdfast.signal (id, target_id, name) OVERRIDING SYSTEM VALUE VALUES (${drawn[0]?.id}::bigint, ${id}::bigint, 'other')`.execute(
      early,
    )
    expect((await rows.answer(id, 'await_signal', { step: 'end', awaits: ['a', 'b'], presented })).status).toBe('awaiting_signal')
    await early.commit().execute()

    await rows.signal(id, 'b')
    expect((await rows.raw(id)).status).toBe('runnable')
    await rows.claim()
    const all = await rows.inbox(id)
    // All but the lowest were shown: a mark of the highest id shown would miss it.
    await sql`UPDATE holdfast.signal SET name = 'a' WHERE id = ${drawn[0]?.id}::bigint`.execute(rows.db)
    const row = await rows.answer(id, 'await_signal', { step: 'end', awaits: ['a', 'b'], presented: all.slice(1), timeoutMs: 60_000 })
    expect(row).toMatchObject({ status: 'runnable', await_deadline: null, awaits: ['a', 'b'] })
    await rows.claim()
    expect((await rows.answer(id, 'await_signal', { step: 'end', awaits: ['a', 'b'], presented: all })).status).toBe('awaiting_signal')
  })

  test('presented ids stay with their instance when several park in one batch', async () => {
    await using rows = await EngineRows.open()
    const ids = await rows.insert({}, {}, {})
    for (const id of ids) await rows.signal(id, 'go')
    await rows.claim()
    const shown = await rows.inbox(present(ids[1]))
    const park = { kind: 'await_signal' as const, step: 'end', awaits: ['go'] }
    await rows.stage(...ids.map((instanceId, index) => ({ instanceId, ...park, ...(index === 1 ? { presented: shown } : {}) })))
    await rows.flush()
    expect((await Promise.all(ids.map((id) => rows.raw(id)))).map((row) => row.status)).toEqual(['runnable', 'awaiting_signal', 'runnable'])
  })

  test('says which queues have work and when the next thing is due', async () => {
    await using rows = await EngineRows.open()
    const ids = await rows.insert({ queue: 'a' }, { queue: 'a' }, { queue: 'b' }, { queue: 'b' })
    await rows.claim({ queue: 'a' })
    await rows.claim({ queue: 'b' })
    const [next, sleep, park, done] = ids.map((instanceId) => ({ instanceId: present(instanceId) }))
    await rows.stage(
      { ...present(next), kind: 'next', step: 's' },
      { ...present(sleep), kind: 'sleep', step: 's', delayMs: 9_000 },
      { ...present(park), kind: 'await_signal', step: 's', awaits: ['x'], timeoutMs: 7_000 },
      { ...present(done), kind: 'done' },
    )
    expect(await rows.flush()).toMatchObject({ taken: 4, applied: 4, queues: ['a'], due_in_ms: 7_000 })
  })

  test('history: one row per applied outcome, with its times, and none where the machine wants none', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.answer(id, 'next', { step: 'second', claimedAgoUs: 3_000_000, startedAgoUs: 2_000_000, finishedAgoUs: 1_000_000 })
    await rows.claim({ worker: 'w1' })
    await rows.answer(id, 'retry', { fromStep: 'second', delayMs: 0, error: '{"code":"step_failed","message":"m"}' })
    await rows.claim()
    await rows.answer(id, 'done', { fromStep: 'second', attempt: 1 })
    const history = await rows.history(id)
    expect(
      history.map(({ kind, from_step, to_step, to_status, attempt, claim_epoch, worker, error }) => ({
        kind,
        from_step,
        to_step,
        to_status,
        attempt,
        claim_epoch,
        worker,
        error,
      })),
    ).toEqual([
      {
        kind: 'next',
        from_step: 'start',
        to_step: 'second',
        to_status: 'runnable',
        attempt: 0,
        claim_epoch: '1',
        worker: 'w1',
        error: null,
      },
      {
        kind: 'retry',
        from_step: 'second',
        to_step: null,
        to_status: 'runnable',
        attempt: 0,
        claim_epoch: '2',
        worker: 'w1',
        error: { code: 'step_failed', message: 'm' },
      },
      { kind: 'done', from_step: 'second', to_step: null, to_status: 'done', attempt: 1, claim_epoch: '3', worker: 'w1', error: null },
    ])
    const [first] = history
    expect(present(first?.started_at).getTime() - present(first?.claimed_at).getTime()).toBe(1_000)
    expect(present(first?.finished_at).getTime() - present(first?.started_at).getTime()).toBe(1_000)
    expect(present(first?.flushed_at).getTime()).toBeGreaterThanOrEqual(present(first?.finished_at).getTime() + 1_000)

    const quiet = await rows.executing()
    await rows.answer(quiet, 'done', { keepHistory: false })
    expect(await rows.history(quiet)).toEqual([])
  })
})

describe('quarantine', () => {
  test('takes the front outcome out of the way, keeps it whole, and fails its instance visibly', async () => {
    await using rows = await EngineRows.open()
    const [id, behind] = await rows.insert({}, {})
    await rows.signal(present(id), 'unread')
    await rows.claim()
    await rows.stage({ instanceId: present(id), kind: 'next', step: 's', state: '{"odd":1}' })
    await rows.stage({ instanceId: present(behind), kind: 'done' })
    const [front] = await peekOutcome(rows.db, { afterSeq: '0' })
    const error = { code: 'outcome_rejected', message: 'why' }
    const before = (Number(front?.seq) - 1).toString()
    expect(await quarantineOutcome(rows.db, { afterSeq: before, error: JSON.stringify(error) })).toMatchObject([
      { instance_id: id, claim_epoch: '1', failed: true, parent_id: null },
    ])
    expect(await rows.raw(present(id))).toMatchObject({ status: 'failed', error, claimed_by: null, lease_expires_at: null })
    const { rows: kept } =
      await sql`SELECT instance_id, claim_epoch, outcome->'state' AS state, error FROM holdfast.outcome_quarantine`.execute(rows.db)
    expect(kept).toEqual([{ instance_id: id, claim_epoch: '1', state: { odd: 1 }, error }])
    expect((await rows.history(present(id)))[0]).toMatchObject({
      kind: 'fail',
      to_status: 'failed',
      from_step: 'start',
      worker: 'w1',
      error,
    })
    expect(await rows.flush()).toMatchObject({ taken: 1, applied: 1, ended: [behind] })
  })

  test('a stale one is kept too, and its instance left alone; nothing where nothing waits', async () => {
    await using rows = await EngineRows.open()
    const id = await rows.executing()
    await rows.stage({ instanceId: id, kind: 'done' })
    await sql`UPDATE holdfast.instance SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL`.execute(rows.db)
    expect(await quarantineOutcome(rows.db, { afterSeq: '0', error: '{}' })).toMatchObject([
      { instance_id: id, claim_epoch: '1', failed: false },
    ])
    expect((await rows.raw(id)).status).toBe('runnable')
    expect(await quarantineOutcome(rows.db, { afterSeq: '0', error: '{}' })).toEqual([])
    expect(await rows.history(id)).toEqual([])
  })
})

test('the statuses of contracts are those of the database, in order', async () => {
  await using rows = await EngineRows.open()
  const labels = async (type: string) =>
    (await sql<{ label: string }>`SELECT unnest(enum_range(NULL::${sql.raw(type)}))::text AS label`.execute(rows.db)).rows.map(
      (row) => row.label,
    )
  expect(await labels('holdfast.instance_status')).toEqual([...InstanceStatuses])
  expect(await labels('holdfast.outcome_kind')).toEqual([...OutcomeKinds])
})
