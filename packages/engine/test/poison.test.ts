import { job, machine } from '@holdfast/engine'
import { sql } from 'kysely'
import { expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest, FLUSH } from './engine-under-test.ts'

// The database can be made to refuse anything; what matters is that the refusal stays with the one it is about (digest N2).
const refuseInstance = (value: string) =>
  sql.raw(`ALTER TABLE holdfast.instance ADD CONSTRAINT no_poison CHECK (result IS DISTINCT FROM '${value}'::jsonb)`)

test.runIf(FLUSH === 'staged')(
  'N2: an outcome that cannot be applied is found by halving, quarantined, and its instance fails; all others are applied',
  async () => {
    const echo = job('echo', { input: z.object({ n: z.number() }), run: ({ n }) => (n === 7 || n === 50 ? 'poison' : n) })
    await using engine = await EngineUnderTest.on([echo])
    const ids = []
    for (let n = 0; n < 64; n += 1) ids.push(await engine.insert('echo', { n }))
    await refuseInstance('"poison"').execute(engine.database.db)
    await engine.scheduler.runOnce()
    expect(await engine.flushAll()).toEqual({ applied: 62, stale: 0, quarantined: 2 })
    for (const [n, id] of ids.entries()) {
      const row = await engine.get(id)
      if (n === 7 || n === 50) {
        expect(row).toMatchObject({ status: 'failed', error: { code: 'outcome_rejected' } })
        expect(row.error?.message).toContain('no_poison')
        expect(await engine.history(id)).toMatchObject([{ kind: 'fail', to_status: 'failed' }])
      } else expect(row).toMatchObject({ status: 'done', result: n })
    }
    const { rows } = await sql<{
      instance_id: string
      outcome: { result: string }
    }>`SELECT instance_id, outcome FROM holdfast.outcome_quarantine ORDER BY 1`.execute(engine.database.db)
    expect(rows.map((row) => [row.instance_id, row.outcome.result])).toEqual([
      [ids[7], 'poison'],
      [ids[50], 'poison'],
    ])
    // The batch size recovers: what follows is flushed as before.
    for (let n = 0; n < 8; n += 1) await engine.insert('echo', { n: 1 })
    await engine.drain()
    expect(engine.log.filter((line) => line.level === 'error')).toHaveLength(2)
  },
)

test.runIf(FLUSH === 'staged')('N2: an outcome that cannot be staged fails its own instance; its neighbours are staged', async () => {
  const echo = job('echo', { input: z.object({ n: z.number() }), run: ({ n }) => (n === 3 ? 'poison' : n) })
  await using engine = await EngineUnderTest.on([echo])
  const ids = []
  for (let n = 0; n < 9; n += 1) ids.push(await engine.insert('echo', { n }))
  await sql
    .raw(`ALTER TABLE holdfast.outcome ADD CONSTRAINT no_poison CHECK (result IS DISTINCT FROM '"poison"'::jsonb)`)
    .execute(engine.database.db)
  await engine.drain()
  for (const [n, id] of ids.entries()) {
    const row = await engine.get(id)
    if (n === 3) expect(row).toMatchObject({ status: 'failed', error: { code: 'not_storable' } })
    else expect(row).toMatchObject({ status: 'done', result: n })
  }
})

test.runIf(FLUSH === 'direct')('N2: an outcome that cannot be applied fails its own instance; its neighbours are applied', async () => {
  const echo = job('echo', { input: z.object({ n: z.number() }), run: ({ n }) => (n === 7 || n === 50 ? 'poison' : n) })
  await using engine = await EngineUnderTest.on([echo])
  for (let n = 0; n < 64; n += 1) await engine.insert('echo', { n })
  await refuseInstance('"poison"').execute(engine.database.db)
  await engine.drain()
  const { rows } = await sql<{ n: number; code: string; message: string }>`
    SELECT (state->>'n')::int AS n, error->>'code' AS code, error->>'message' AS message FROM holdfast.instance WHERE status <> 'done' ORDER BY id`.execute(
    engine.database.db,
  )
  const refused = { code: 'not_storable', message: expect.stringContaining('no_poison') }
  expect(rows).toEqual([
    { n: 7, ...refused },
    { n: 50, ...refused },
  ])
})

test('a delay too long for the database is refused where it is made', async () => {
  const eternal = machine('eternal', { retry: { maxAttempts: 1 }, steps: { start: (ctx) => ctx.sleep('200000 days', 'start') } })
  await using engine = await EngineUnderTest.on([eternal])
  const id = await engine.insert('eternal')
  await engine.drain()
  expect((await engine.get(id)).error?.message).toContain('not a duration')
})
