// Operations that an API may be too old for: each is sent to a real one. Where its OpenAPI document has the operation it must do its work, and where it has
// not, the command must say that the API does not know it.
import type { Instance } from '@holdfast/contracts'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { holdfast, holdfastJson } from './run-holdfast.ts'
import { SystemUnderTest } from './system-under-test.ts'

let system: SystemUnderTest
beforeAll(async () => {
  system = await SystemUnderTest.start('scheduler', 'flusher', 'reaper')
})
afterAll(() => system[Symbol.asyncDispose]())

const json = <Document>(...args: string[]) => holdfastJson<Document>(args, { env: system.env })
const enqueue = async (...args: string[]): Promise<string> =>
  (await json<{ id: string }>('enqueue', 'checkout', '--input', '{"order":1}', ...args)).document.id
const unknownToApi = { code: 1, document: { error: { code: 'not_found' } } }

test('cancel and retry by id', async () => {
  const id = await enqueue('--delay', '1 day')
  const cancelled = await json('cancel', id, '--reason', 'test')
  if (!(await system.has('/v1/instances/{id}/cancel'))) {
    expect(cancelled).toMatchObject({ code: 1, document: { results: [{ id, error: { code: 'not_found' } }] } })
    return
  }
  expect(cancelled).toMatchObject({ code: 0, document: { results: [{ id, status: 'cancelled' }] } })
  expect(await json('cancel', id)).toMatchObject({ code: 1, document: { results: [{ error: { code: 'instance_conflict' } }] } })
  expect((await json('retry', id)).code).toBe(0)
  expect((await json<Instance>('get', id)).document.status).not.toBe('cancelled')
})

test('cancel and retry by filter', async () => {
  const ids = [await enqueue('--queue', 'bulk', '--delay', '1 day'), await enqueue('--queue', 'bulk', '--delay', '1 day')]
  const cancelled = await json<{ ids: string[] }>('cancel', '--queue', 'bulk', '--all')
  if (!(await system.has('/v1/instances/cancel'))) {
    expect(cancelled).toMatchObject(unknownToApi)
    return
  }
  expect(cancelled).toMatchObject({ code: 0, document: { matched: 2, more: false } })
  expect(cancelled.document.ids.toSorted()).toEqual(ids.toSorted())
  expect(await json('retry', '--queue', 'bulk', '--status', 'cancelled', '--limit', '1')).toMatchObject({
    code: 0,
    document: { matched: 1, more: true },
  })
})

test('limits', async () => {
  const set = await json('limits', 'set-rate', 'mail', '--rate', '100', '--per', '1 min', '--burst', '200')
  if (!(await system.has('/v1/limits'))) {
    expect(set).toMatchObject(unknownToApi)
    return
  }
  expect(set).toMatchObject({ code: 0, document: { kind: 'rate', name: 'mail', rate: 100, period_ms: 60_000, burst: 200 } })
  expect(await json('limits', 'set-gate', 'printer', '--capacity', '3')).toMatchObject({
    code: 0,
    document: { kind: 'gate', name: 'printer', capacity: 3 },
  })
  const { limits } = (await json<{ limits: { kind: string; name: string }[] }>('limits')).document
  expect(limits.map(({ kind, name }) => `${kind} ${name}`).toSorted()).toEqual(['gate printer', 'rate mail'])
  await enqueue('--rate-limit', 'mail:a', '--weight', '2')
})

test('schedules', async () => {
  const put = await json(
    'schedules',
    'put',
    'nightly',
    '--cron',
    '0 3 * * *',
    '--timezone',
    'Europe/Berlin',
    '--machine',
    'checkout',
    '--input',
    '{"order":3}',
  )
  if (!(await system.has('/v1/schedules/{name}'))) {
    expect(put).toMatchObject(unknownToApi)
    return
  }
  expect(put).toMatchObject({
    code: 0,
    document: { name: 'nightly', cron: '0 3 * * *', next_at: expect.stringMatching(/^\d{4}-/) as string },
  })
  expect(await json('schedules')).toMatchObject({ document: { schedules: [{ name: 'nightly' }] } })
  expect(await json('schedules', 'get', 'nightly')).toMatchObject({ document: { machine: 'checkout' } })
  await json('schedules', 'put', 'nightly', '--cron', '@daily', '--machine', 'checkout', '--paused', '--overlap', 'skip')
  expect((await holdfast(['schedules', 'get', 'nightly'], { env: system.env })).stdout).toMatch(/^overlap +skip\nnext +paused$/m)
  await system.query(`UPDATE holdfast.schedule SET last_error = '{"code":"unknown_machine","message":"nobody has it"}', last_error_at = now(),
    skipped_at = '2026-01-01T03:00:00Z', skipped_why = 'overlap'`)
  const told = (await holdfast(['schedules', 'get', 'nightly'], { env: system.env })).stdout
  expect(told).toMatch(/^skipped +2026-01-01T03:00:00.000Z \(overlap\)$/m)
  expect(told).toMatch(/^error +unknown_machine: nobody has it$/m)
  expect((await holdfast(['schedules'], { env: system.env })).stdout).toMatch(/paused.*unknown_machine/)
  expect((await json('schedules', 'delete', 'nightly')).code).toBe(0)
  expect(await json('schedules', 'get', 'nightly')).toMatchObject(unknownToApi)
  expect(await json('schedules', 'put', 'x', '--cron', 'whenever', '--machine', 'checkout')).toMatchObject({ code: 1 })
})
