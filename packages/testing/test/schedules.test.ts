import { job, machine } from '@holdfast/engine'
import { type TestEngine, testEngine } from '@holdfast/testing'
import { expect, test } from 'vitest'
import { z } from 'zod'

const report = job('report', { input: z.object({ at: z.string() }), run: ({ at }) => ({ at }) })
/** In a zone whose days all have 24 hours, so that three of them have three mornings whenever this runs. */
const daily = { cron: '0 9 * * *', timezone: 'Asia/Tokyo', machine: report, input: { at: '{{tick}}' } } as const

const ticksOf = async (holdfast: TestEngine): Promise<string[]> =>
  (await holdfast.instances({ machine: report })).map(({ state }) => (state as { at: string }).at)
const clockIn = (timeZone: string, instant: string): string =>
  new Intl.DateTimeFormat('en-GB', { timeZone, timeStyle: 'medium' }).format(new Date(instant))

test('three days have three mornings, each at its hour, whatever hour the test runs at', async () => {
  await using holdfast = await testEngine({ machines: [report] })
  const { next_at: first } = await holdfast.putSchedule('morning', daily)
  expect(await holdfast.drain({ travel: '3 days' })).toMatchObject({ steps: 3, outcomes: { done: 3 }, travelledMs: 259_200_000 })
  const ticks = await ticksOf(holdfast)
  expect(ticks).toHaveLength(3)
  expect(ticks[0]).toBe(first?.toISOString().replace('.000', ''))
  expect(ticks.map((tick) => clockIn('Asia/Tokyo', tick))).toEqual(['09:00:00', '09:00:00', '09:00:00'])
  const schedule = await holdfast.schedule('morning')
  expect(schedule.last_at?.toISOString().replace('.000', '')).toBe(ticks[2])
  expect((schedule.next_at?.getTime() ?? 0) - holdfast.now().getTime()).toBeLessThan(86_400_001)
  expect(schedule.next_at?.getTime()).toBeGreaterThan(holdfast.now().getTime())
  // From drain to drain, too.
  for (let day = 0; day < 4; day += 1) await holdfast.drain({ travel: '12 hours' })
  expect(await ticksOf(holdfast)).toHaveLength(5)
})

test('a year goes to summer time and back', async () => {
  await using holdfast = await testEngine({ machines: [report] })
  await holdfast.putSchedule('monthly', { ...daily, cron: '30 2 1 * *', timezone: 'Europe/Berlin' })
  const start = holdfast.now()
  await holdfast.drain({ travel: new Date(start.getTime() + 366 * 86_400_000) })
  expect(holdfast.now().getTime() - start.getTime()).toBeGreaterThanOrEqual(366 * 86_400_000)
  const ticks = await ticksOf(holdfast)
  expect(ticks.length).toBeGreaterThan(10) // 12, or 13 on the first of a month
  expect(ticks.map((tick) => clockIn('Europe/Berlin', tick))).toEqual(ticks.map(() => '02:30:00'))
  expect(new Set(ticks.map((tick) => tick.slice(11, 13)))).toEqual(new Set(['00', '01']))
  await expect(holdfast.drain({ travel: start })).rejects.toThrow(/time goes forward only/)
})

test('travel: true ends although schedules never do; they tick as far as something else waits', async () => {
  const nap = machine('nap', { steps: { start: (ctx) => ctx.sleep('1 day', 'end'), end: (ctx) => ctx.done() } })
  await using holdfast = await testEngine({ machines: [report, nap] })
  await holdfast.putSchedule('hourly', { ...daily, cron: '@hourly' })
  expect(await holdfast.drain({ travel: true })).toMatchObject({ steps: 0, travelledMs: 0 })
  await holdfast.enqueue(nap)
  expect(await holdfast.drain({ travel: true })).toMatchObject({ steps: 26 })
  expect(await ticksOf(holdfast)).toHaveLength(24)
})

test('ticks that were missed are caught up with as the schedule says', async () => {
  await using holdfast = await testEngine({ machines: [report] })
  for (const [catchUp, expected] of [
    ['none', 0],
    ['one', 1],
    ['all', 3],
  ] as const) {
    const before = (await ticksOf(holdfast)).length
    const { next_at: nextAt } = await holdfast.putSchedule('morning', { ...daily, catchUp })
    // Into the middle between two mornings.
    await holdfast.advance((nextAt?.getTime() ?? 0) - holdfast.now().getTime() + 2.5 * 86_400_000)
    expect(await holdfast.drain()).toMatchObject({ travelledMs: 0 })
    expect((await ticksOf(holdfast)).length - before, catchUp).toBe(expected)
  }
  expect(await holdfast.schedule('morning')).toMatchObject({ last_error: null, skipped_why: 'missed' })
})

test('overlap: a run that is still live', async () => {
  const slow = machine('slow', { steps: { start: (ctx) => ctx.sleep('90 minutes', 'end'), end: (ctx) => ctx.done() } })
  await using holdfast = await testEngine({ machines: [slow] })
  await holdfast.putSchedule('hourly', { cron: '@hourly', machine: slow, overlap: 'skip' })
  await holdfast.drain({ travel: '6 hours' })
  expect(await holdfast.instances()).toHaveLength(3)
  expect(await holdfast.schedule('hourly')).toMatchObject({ skipped_why: 'overlap' })
  await holdfast.deleteSchedule('hourly')
  await holdfast.drain({ travel: '1 day' })
  expect((await holdfast.instances()).map(({ status }) => status)).toEqual(['done', 'done', 'done'])
  await expect(holdfast.schedule('hourly')).rejects.toThrow('there is no schedule hourly')
})

test('what means nothing is refused', async () => {
  await using holdfast = await testEngine({ machines: [report] })
  await expect(holdfast.putSchedule('x', { ...daily, cron: '61 * * * *' })).rejects.toThrow(/minute/)
  await expect(holdfast.putSchedule('x', { ...daily, timezone: 'Mars/Olympus' })).rejects.toThrow(/time zone/)
  await expect(holdfast.putSchedule('x', { cron: '@daily', machine: 'unknown' })).rejects.toThrow(/was not given machine unknown/)
})
