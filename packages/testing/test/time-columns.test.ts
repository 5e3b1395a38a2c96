import { fixedColumns, movedColumns } from '@holdfast/testbed/time-travel'
import { testEngine } from '@holdfast/testing'
import { expect, test } from 'vitest'

test('every time in the schema is moved by time travel, or named as one that is not', async () => {
  await using holdfast = await testEngine({ machines: [] })
  const rows = await holdfast.query<{ name: string }>(
    `SELECT c.relname || '.' || a.attname AS name FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
       AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid IN ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)`,
  )
  const moved = Object.entries(movedColumns).flatMap(([table, columns]) => columns.map((column) => `${table}.${column}`))
  expect(rows.length).toBeGreaterThan(20)
  expect(rows.map(({ name }) => name).toSorted()).toEqual([...moved, ...Object.keys(fixedColumns)].toSorted())
})

test('a jump moves each of them by exactly so much, and an infinite wait not at all', async () => {
  await using holdfast = await testEngine({ machines: [] })
  await holdfast.query(`INSERT INTO holdfast.instance (project_id, machine, version, queue, status, rate_key, throttled_until)
    SELECT id, 'm', 1, 'q', 'throttled', 'r', 'infinity' FROM holdfast.project`)
  await holdfast.query(`INSERT INTO holdfast.rate_bucket (project_id, key, shard, revision, tokens, capacity, refilled_at)
    SELECT id, 'r', 0, 1, 0, 1, '2030-01-01' FROM holdfast.project`)
  await holdfast.query(`INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, flushed_at)
    VALUES (1, 1, 0, 'done', 'done', 's', '2030-01-01')`)
  await holdfast.advance('2 days')
  await holdfast.advance(1)
  expect(
    await holdfast.query(`SELECT throttled_until::text AS until, (SELECT refilled_at FROM holdfast.rate_bucket), (SELECT flushed_at FROM holdfast.transition)
      FROM holdfast.instance`),
  ).toEqual([{ until: 'infinity', refilled_at: new Date('2029-12-29T23:59:59.999Z'), flushed_at: new Date('2029-12-29T23:59:59.999Z') }])
})
