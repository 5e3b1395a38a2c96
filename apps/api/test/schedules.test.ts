import { Channels, Schedule, ScheduleList } from '@holdfast/contracts'
import { findDueSchedules, fireTicks } from '@holdfast/queries'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Answer, ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
  await api.declare('report')
})
afterAll(() => api[Symbol.asyncDispose]())
beforeEach(() => api.query('DELETE FROM holdfast.schedule'))

const nightly = { cron: '0 3 * * *', machine: 'report' }
const put = (name: string, body: object = nightly, token = api.token): Promise<Answer> =>
  api.api('PUT', `/v1/schedules/${name}`, { body, token })
const get = async (name: string): Promise<Schedule> => Schedule.parse((await api.api('GET', `/v1/schedules/${name}`)).body)
/** Fires what is due, as a scheduler does. */
async function fire(nextAt: string): Promise<void> {
  const rows = await findDueSchedules(api.database.db, { limit: 10 })
  const firings = rows.flatMap((row) =>
    row.name === null
      ? []
      : [{ projectId: row.project_id, name: row.name, revision: row.revision, ticks: [row.next_at], nextAt: new Date(nextAt) }],
  )
  await fireTicks(api.database.db, { firings })
}

test('put, get, list, delete', async () => {
  const made = await put('nightly')
  expect(made.status).toBe(201)
  const schedule = Schedule.parse(made.body)
  expect(schedule).toEqual({
    name: 'nightly',
    cron: '0 3 * * *',
    timezone: 'UTC',
    machine: 'report',
    version: null,
    input: {},
    queue: null,
    priority: 0,
    concurrency_key: null,
    catch_up: 'none',
    overlap: 'allow',
    paused: false,
    next_at: expect.stringMatching(/T03:00:00\.000Z$/) as string,
    last_at: null,
    last_instance_id: null,
    last_skipped: null,
    last_error: null,
    created_at: expect.any(String) as string,
    updated_at: expect.any(String) as string,
  })
  const inMs = Date.parse(schedule.next_at ?? '') - Date.now()
  expect(inMs).toBeGreaterThan(0)
  expect(inMs).toBeLessThanOrEqual(86_400_000)
  expect(await get('nightly')).toEqual(schedule)

  const whole = {
    cron: '30 2 * * MON-FRI',
    timezone: 'Europe/Berlin',
    machine: 'report',
    version: 1,
    input: { day: '{{tick}}' },
    queue: 'q',
    priority: -1,
    concurrency_key: 'k',
    catch_up: 'all',
    overlap: 'skip',
    paused: false,
  }
  const replaced = await put('nightly', whole)
  expect(replaced.status).toBe(200)
  expect(replaced.body).toMatchObject(whole)
  // A field that is left out has its default again.
  expect((await put('nightly')).body).toMatchObject({ timezone: 'UTC', input: {}, queue: null, catch_up: 'none', overlap: 'allow' })

  await put('a.b_c-D')
  await put('zebra')
  const list = async (query = '') => ScheduleList.parse((await api.api('GET', `/v1/schedules${query}`)).body)
  expect((await list()).schedules.map(({ name }) => name)).toEqual(['a.b_c-D', 'nightly', 'zebra'])
  expect(await list()).not.toHaveProperty('next')
  const page = await list('?limit=2')
  expect([page.schedules.length, page.next]).toEqual([2, 'nightly'])
  expect((await list('?limit=2&after=nightly')).schedules.map(({ name }) => name)).toEqual(['zebra'])

  const removed = await api.api('DELETE', '/v1/schedules/nightly')
  expect([removed.status, removed.body]).toEqual([204, undefined])
  refused(await api.api('GET', '/v1/schedules/nightly'), 404, 'not_found')
  refused(await api.api('DELETE', '/v1/schedules/nightly'), 404, 'not_found')
})

test('a schedule of another project is not there', async () => {
  await put('nightly')
  const other = await api.tokenFor('other')
  refused(await api.api('GET', '/v1/schedules/nightly', { token: other }), 404, 'not_found')
  refused(await api.api('DELETE', '/v1/schedules/nightly', { token: other }), 404, 'not_found')
  expect((await api.api('GET', '/v1/schedules', { token: other })).body).toEqual({ schedules: [] })
  expect((await put('nightly', { ...nightly, priority: 7 }, other)).status).toBe(201)
  expect((await get('nightly')).priority).toBe(0)
})

test('a new definition keeps what was fired and takes its next tick from now; paused there is none', async () => {
  await put('nightly')
  await api.query(`UPDATE holdfast.schedule SET next_at = '2026-01-01T03:00:00Z', due_at = now() - interval '1 second'`)
  await fire('2100-01-01T00:00:00Z')
  const fired = await get('nightly')
  expect(fired).toMatchObject({ last_at: '2026-01-01T03:00:00.000Z', next_at: '2100-01-01T00:00:00.000Z' })
  const instance = await api.api('GET', `/v1/instances/${fired.last_instance_id ?? ''}`)
  expect(instance.body).toMatchObject({ machine: 'report', queue: 'report-queue', status: 'runnable' })

  const changed = Schedule.parse((await put('nightly', { ...nightly, cron: '*/5 * * * *' })).body)
  expect(changed).toMatchObject({ last_at: fired.last_at, last_instance_id: fired.last_instance_id })
  expect(Date.parse(changed.next_at ?? '') - Date.now()).toBeLessThanOrEqual(300_000)
  expect((await put('nightly', { ...nightly, paused: true })).body).toMatchObject({ paused: true, next_at: null, last_at: fired.last_at })
  const resumed = Schedule.parse((await put('nightly')).body)
  expect(resumed.paused).toBe(false)
  expect(Date.parse(resumed.next_at ?? '')).toBeGreaterThan(Date.now())
})

test('a tick that is fired while its schedule is being defined stays behind', async () => {
  await put('nightly')
  // The clock of the database was set back since, or another scheduler was ahead of it: the last tick lies in the future.
  await api.query(`UPDATE holdfast.schedule SET last_at = now() + interval '40 days', next_at = now() + interval '41 days'`)
  const { next_at: next, last_at: last } = Schedule.parse((await put('nightly')).body)
  expect(Date.parse(next ?? '')).toBeGreaterThan(Date.parse(last ?? ''))

  // One that commits between our look at the clock and our write: the write is refused by the table, and the next tick computed anew.
  await api.query(`CREATE SEQUENCE public.tries; GRANT USAGE ON SEQUENCE public.tries TO PUBLIC`)
  await api.query(`CREATE FUNCTION public.fire_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('public.tries') = 1 THEN NEW.last_at := NEW.next_at; ELSE NEW.last_at := NULL; END IF; RETURN NEW; END $$`)
  await api.query('CREATE TRIGGER fire_first BEFORE UPDATE ON holdfast.schedule FOR EACH ROW EXECUTE FUNCTION public.fire_first()')
  try {
    expect((await put('nightly')).status).toBe(200)
    expect(await api.query('SELECT last_value FROM public.tries')).toEqual([{ last_value: '2' }])
  } finally {
    await api.query('DROP TRIGGER fire_first ON holdfast.schedule; DROP FUNCTION public.fire_first(); DROP SEQUENCE public.tries')
  }
})

test('schedulers are told of a tick that comes soon, and of no other', async () => {
  const heard = await api.listenTo(Channels.schedule)
  await put('soon', { ...nightly, cron: '* * * * * *' })
  await expect.poll(() => heard.length).toBe(1)
  expect(heard[0]).toMatch(/^holdfast_schedule:\d{1,4}$/)
  await put('later')
  await put('paused', { ...nightly, cron: '* * * * * *', paused: true })
  await put('soon', { ...nightly, cron: '* * * * * *' })
  await expect.poll(() => heard.length).toBe(2)
})

test('what is wrong with a schedule is shown on it', async () => {
  await put('nightly')
  await api.query(`UPDATE holdfast.schedule SET last_error = '{"code":"unknown_machine","message":"nobody has declared it"}', last_error_at = now(),
    skipped_at = '2026-01-01T03:00:00Z', skipped_why = 'overlap'`)
  expect(await get('nightly')).toMatchObject({
    last_error: { code: 'unknown_machine', message: 'nobody has declared it', at: expect.stringMatching(/Z$/) as string },
    last_skipped: { at: '2026-01-01T03:00:00.000Z', reason: 'overlap' },
  })
  expect((await put('nightly')).body).toMatchObject({ last_error: null, last_skipped: { reason: 'overlap' } })
})

describe('refused, and nothing changed', () => {
  async function refuses(status: number, code: string, ask: () => Promise<Answer>): Promise<string> {
    await put('there')
    const before = await api.rows()
    const message = refused(await ask(), status, code)
    expect(await api.rows()).toEqual(before)
    expect((await api.api('GET', '/v1/schedules/there')).status).toBe(200)
    return message
  }

  test.each<[string, object, RegExp]>([
    ['no cron', { cron: undefined }, /cron/],
    ['an empty cron', { cron: '' }, /cron/],
    ['a cron of the wrong type', { cron: 5 }, /cron/],
    ['a cron that is too long', { cron: '1,'.repeat(600) }, /cron/],
    ['a cron that is prose', { cron: 'whenever' }, /cron: expected 5 fields/],
    ['four fields', { cron: '* * * *' }, /cron: expected 5 fields/],
    ['a year', { cron: '0 0 0 1 1 * 2030' }, /cron: expected 5 fields/],
    ['a minute that is none', { cron: '60 * * * *' }, /the minute field cannot be "60".*0 to 59/],
    ['an hour that is none', { cron: '0 24 * * *' }, /the hour field cannot be "24"/],
    ['a weekday that is none', { cron: '0 3 * * FOO' }, /the day-of-week field cannot be "FOO"/],
    ['a day that never comes', { cron: '0 0 30 2 *' }, /never comes/],
    ['a time zone that is none', { timezone: 'Mars/Base' }, /timezone: "Mars\/Base"/],
    ['an offset as a time zone', { timezone: '+02:00' }, /timezone/],
    ['an empty time zone', { timezone: '' }, /timezone/],
    ['no machine', { machine: undefined }, /machine/],
    ['an empty machine', { machine: '' }, /machine/],
    ['version 0', { version: 0 }, /version/],
    ['a priority as text', { priority: '1' }, /priority/],
    ['a catch-up of its own invention', { catch_up: 'some' }, /catch_up/],
    ['an overlap of its own invention', { overlap: 'maybe' }, /overlap/],
    ['queue with a key of its own', { overlap: 'queue', concurrency_key: 'k' }, /not both/],
    ['paused as text', { paused: 'yes' }, /paused/],
    ['a number that no double holds', { input: Number.POSITIVE_INFINITY }, /./],
  ])('%s', async (_name, fields, named) => {
    if ('input' in fields) {
      const raw = '{"cron":"0 3 * * *","machine":"report","input":{"n":1e400}}'
      expect(await refuses(400, 'invalid_schedule', () => api.api('PUT', '/v1/schedules/there', { raw }))).toMatch(/input/)
      return
    }
    expect(await refuses(400, 'invalid_schedule', () => put('there', { ...nightly, ...fields }))).toMatch(named)
  })

  test.each(['-a', '.a', 'a b', 'a/b', 'ä', `a${'b'.repeat(200)}`])('the name %s', async (name) => {
    const path = encodeURIComponent(name)
    expect(await refuses(400, 'invalid_schedule', () => put(path))).toMatch(/^name: expected/)
    await refuses(404, 'not_found', () => api.api('GET', `/v1/schedules/${path}`))
    await refuses(404, 'not_found', () => api.api('DELETE', `/v1/schedules/${path}`))
  })

  test('a field that does not exist, a body that is none', async () => {
    expect(await refuses(400, 'invalid_body', () => put('there', { ...nightly, crontab: '* * * * *' }))).toMatch(/crontab/)
    await refuses(400, 'invalid_body', () => api.api('PUT', '/v1/schedules/there'))
    await refuses(400, 'invalid_body', () => api.api('PUT', '/v1/schedules/there', { raw: '[]' }))
    await refuses(400, 'invalid_body', () => api.api('GET', '/v1/schedules?order=name'))
    await refuses(400, 'invalid_schedule', () => api.api('GET', '/v1/schedules?limit=0'))
    await refuses(400, 'invalid_schedule', () => api.api('GET', '/v1/schedules?after=%20'))
  })

  test('a machine, or a version of it, that nobody has declared', async () => {
    expect(await refuses(404, 'unknown_machine', () => put('there', { ...nightly, machine: 'nobody' }))).toMatch(/nobody/)
    expect(await refuses(404, 'unknown_machine', () => put('there', { ...nightly, version: 9 }))).toMatch(/version 9/)
  })

  test('an input that is too large', async () => {
    expect(await refuses(413, 'payload_too_large', () => put('there', { ...nightly, input: 'x'.repeat(524_288) }))).toMatch(/input/)
  })

  test('a token that may only read', async () => {
    await refuses(403, 'forbidden', () => put('there', nightly, api.readOnly))
    await refuses(403, 'forbidden', () => api.api('DELETE', '/v1/schedules/there', { token: api.readOnly }))
    expect((await api.api('GET', '/v1/schedules', { token: api.readOnly })).status).toBe(200)
    expect((await api.api('GET', '/v1/schedules/there', { token: api.readOnly })).status).toBe(200)
  })
})
