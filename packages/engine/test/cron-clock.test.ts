import { describe, expect, test } from 'vitest'
import { CronClock, InvalidCronError } from '../src/cron-clock.ts'
import { dueTicks } from '../src/due-ticks.ts'

const at = (text: string): Date => new Date(text)
const ticks = (cron: string, timezone: string, from: string, count: number): string[] => {
  const clock = new CronClock(cron, timezone)
  const found: string[] = []
  for (let tick = clock.after(at(from)); tick !== undefined && found.length < count; tick = clock.after(tick))
    found.push(tick.toISOString().replace('.000Z', 'Z'))
  return found
}
const BERLIN = 'Europe/Berlin'

describe('the clock is set forward: on 29 March 2026 the hour from 2 to 3 does not exist in Berlin', () => {
  test('a time of the day in it comes when the clock has jumped, that day only', () => {
    expect(ticks('30 2 * * *', BERLIN, '2026-03-27T12:00:00Z', 3)).toEqual([
      '2026-03-28T01:30:00Z',
      '2026-03-29T01:00:00Z', // 3:00, the first instant after the gap
      '2026-03-30T00:30:00Z',
    ])
  })
  test('two times of the day in it come as one', () => {
    expect(ticks('0,30 2 * * *', BERLIN, '2026-03-28T12:00:00Z', 2)).toEqual(['2026-03-29T01:00:00Z', '2026-03-30T00:00:00Z'])
  })
  test('a rhythm follows the clock: every quarter of an hour stays that, and one that only beats in the gap is silent that day', () => {
    expect(ticks('*/15 * * * *', BERLIN, '2026-03-29T00:20:00Z', 4)).toEqual([
      '2026-03-29T00:30:00Z',
      '2026-03-29T00:45:00Z',
      '2026-03-29T01:00:00Z',
      '2026-03-29T01:15:00Z',
    ])
    expect(ticks('*/15 2 * * *', BERLIN, '2026-03-28T12:00:00Z', 1)).toEqual(['2026-03-30T00:00:00Z'])
  })
})

describe('the clock is set back: on 25 October 2026 the hour from 2 to 3 comes twice in Berlin', () => {
  test('a time of the day in it comes once, the first time', () => {
    expect(ticks('30 2 * * *', BERLIN, '2026-10-24T12:00:00Z', 2)).toEqual(['2026-10-25T00:30:00Z', '2026-10-26T01:30:00Z'])
    expect(ticks('0,30 2 * * *', BERLIN, '2026-10-24T12:00:00Z', 3)).toEqual([
      '2026-10-25T00:00:00Z',
      '2026-10-25T00:30:00Z',
      '2026-10-26T01:00:00Z',
    ])
    expect(ticks('0 2,14 * * *', BERLIN, '2026-10-24T20:00:00Z', 2)).toEqual(['2026-10-25T00:00:00Z', '2026-10-25T13:00:00Z'])
  })
  test('a rhythm beats through both', () => {
    expect(ticks('*/15 * * * *', BERLIN, '2026-10-24T23:50:00Z', 9)).toEqual(
      [0, 15, 30, 45, 60, 75, 90, 105, 120].map((minutes) =>
        new Date(Date.UTC(2026, 9, 25, 0, minutes)).toISOString().replace('.000Z', 'Z'),
      ),
    )
    expect(ticks('*/15 2 * * *', BERLIN, '2026-10-24T12:00:00Z', 9)).toEqual([
      ...[0, 15, 30, 45, 60, 75, 90, 105].map((minutes) => new Date(Date.UTC(2026, 9, 25, 0, minutes)).toISOString().replace('.000Z', 'Z')),
      '2026-10-26T01:00:00Z',
    ])
    expect(ticks('0 * * * *', BERLIN, '2026-10-24T23:30:00Z', 3)).toEqual([
      '2026-10-25T00:00:00Z',
      '2026-10-25T01:00:00Z',
      '2026-10-25T02:00:00Z',
    ])
  })
})

test('zones that move by half an hour, at midnight, or by a day', () => {
  expect(ticks('0,30 * * * *', 'Australia/Lord_Howe', '2026-10-03T14:50:00Z', 3)).toEqual([
    '2026-10-03T15:00:00Z',
    '2026-10-03T15:30:00Z',
    '2026-10-03T16:00:00Z',
  ])
  expect(ticks('0 0 * * *', 'America/Sao_Paulo', '2018-11-03T12:00:00Z', 2)).toEqual(['2018-11-04T03:00:00Z', '2018-11-05T02:00:00Z'])
  expect(ticks('0 12 * * *', 'Pacific/Apia', '2011-12-28T12:00:00Z', 2)).toEqual(['2011-12-28T22:00:00Z', '2011-12-29T22:00:00Z'])
})

test('what comes next, and what came before, depends on the instant and not on how one got there', () => {
  for (const timezone of [BERLIN, 'Australia/Lord_Howe', 'America/New_York']) {
    for (const cron of ['*/15 * * * *', '30 2 * * *', '*/15 2 * * *', '0 2-4 * * *', '*/20 */10 1 * * *']) {
      for (const from of ['2026-03-08T05:00:00Z', '2026-03-28T23:00:00Z', '2026-10-03T14:00:00Z', '2026-10-24T22:00:00Z']) {
        const clock = new CronClock(cron, timezone)
        let tick = clock.after(at(from)) as Date
        for (let count = 0; count < 12; count += 1) {
          const next = clock.after(tick) as Date
          const between = new Date(tick.getTime() + Math.floor((next.getTime() - tick.getTime()) * (count / 12)))
          expect([cron, timezone, new CronClock(cron, timezone).after(between)]).toEqual([cron, timezone, next])
          expect([cron, timezone, clock.before(next)]).toEqual([cron, timezone, tick])
          tick = next
        }
      }
    }
  }
})

test('five fields, six with seconds, and nicknames', () => {
  expect(ticks('*/30 * * * * *', 'UTC', '2026-01-01T00:00:00.500Z', 2)).toEqual(['2026-01-01T00:00:30Z', '2026-01-01T00:01:00Z'])
  expect(ticks('  0  3 * * MON-FRI ', 'UTC', '2026-01-02T12:00:00Z', 1)).toEqual(['2026-01-05T03:00:00Z'])
  expect(ticks('@Daily', 'UTC', '2026-01-01T12:00:00Z', 1)).toEqual(['2026-01-02T00:00:00Z'])
  expect(ticks('0 0 1 * 1', 'UTC', '2026-01-01T12:00:00Z', 2)).toEqual(['2026-01-05T00:00:00Z', '2026-01-12T00:00:00Z']) // either of the two days, as in crontab
  expect(ticks('0 9 L * *', 'UTC', '2026-02-01T00:00:00Z', 1)).toEqual(['2026-02-28T09:00:00Z'])
  expect(ticks('0 9 15W * *', 'UTC', '2026-08-01T00:00:00Z', 1)).toEqual(['2026-08-14T09:00:00Z']) // the 15th is a Saturday
  expect(ticks('0 9 * * 5#2', 'UTC', '2026-08-01T00:00:00Z', 1)).toEqual(['2026-08-14T09:00:00Z'])
  expect(ticks('0 9 * * 5L', 'UTC', '2026-08-01T00:00:00Z', 1)).toEqual(['2026-08-28T09:00:00Z'])
  expect(ticks('0 8-18/2 * * *', 'UTC', '2026-08-01T09:00:00Z', 2)).toEqual(['2026-08-01T10:00:00Z', '2026-08-01T12:00:00Z'])
  expect(new CronClock('0 0 30 2 *', 'UTC').after(at('2026-01-01T00:00:00Z'))).toBe(undefined)
})

test.each<[string, string, RegExp]>([
  ['60 * * * *', 'UTC', /^cron: the minute field cannot be "60"; it takes 0 to 59/],
  ['* 25 * * *', 'UTC', /^cron: the hour field cannot be "25"/],
  ['0 0 32 * *', 'UTC', /^cron: the day-of-month field cannot be "32"/],
  ['0 0 * 13 *', 'UTC', /^cron: the month field cannot be "13"/],
  ['0 0 * * 8', 'UTC', /^cron: the day-of-week field cannot be "8"/],
  ['61 0 0 * * *', 'UTC', /^cron: the second field cannot be "61"/],
  ['*/0 * * * *', 'UTC', /the minute field/],
  ['* 5-1 * * *', 'UTC', /the hour field/],
  ['* * * foo *', 'UTC', /the month field cannot be "foo"/],
  ['whenever', 'UTC', /expected 5 fields/],
  ['* * * *', 'UTC', /expected 5 fields/],
  ['* * * * * * 2030', 'UTC', /expected 5 fields/],
  ['2030-01-01T00:00:00', 'UTC', /expected 5 fields/],
  ['@reboot', 'UTC', /@hourly/],
  ['', 'UTC', /expected 5 fields/],
  ['0 3 * * *', 'Nowhere/City', /^timezone: "Nowhere\/City" is not a time zone/],
  ['0 3 * * *', '+02:00', /^timezone/],
  ['0 3 * * *', '', /^timezone/],
  ['0 3 * * *', 'x'.repeat(10_000), /^timezone.{1,200}$/],
])('%s in %s is refused, and the message names the field', (cron, timezone, message) => {
  expect(() => new CronClock(cron, timezone)).toThrow(InvalidCronError)
  expect(() => new CronClock(cron, timezone)).toThrow(message)
})

describe('which ticks are fired', () => {
  const due = (catchUp: 'none' | 'one' | 'all', dueAt: string, now: string, limit = 10, cron = '*/10 * * * *') => {
    const found = dueTicks(new CronClock(cron, 'UTC'), { dueAt: at(dueAt), now: at(now), catchUp, limit })
    const short = (date: Date | undefined): string | undefined => date?.toISOString().slice(11, 19)
    return { ticks: found?.ticks.map(short), next: short(found?.nextAt), missed: short(found?.missedAt) }
  }

  test('in time, every policy fires the one that is due', () => {
    for (const catchUp of ['none', 'one', 'all'] as const)
      expect(due(catchUp, '2026-01-01T10:00:00Z', '2026-01-01T10:00:00.004Z')).toEqual({ ticks: ['10:00:00'], next: '10:10:00' })
  })
  test('none leaves out what is over a minute late', () => {
    expect(due('none', '2026-01-01T10:00:00Z', '2026-01-01T10:01:00Z')).toEqual({ ticks: ['10:00:00'], next: '10:10:00' })
    expect(due('none', '2026-01-01T10:00:00Z', '2026-01-01T10:01:01Z')).toEqual({ ticks: [], next: '10:10:00', missed: '10:00:00' })
    expect(due('none', '2026-01-01T10:00:00Z', '2026-01-01T12:05:00Z')).toEqual({ ticks: [], next: '12:10:00', missed: '12:00:00' })
    expect(due('none', '2026-01-01T10:00:00Z', '2026-01-01T12:00:30Z')).toEqual({
      ticks: ['12:00:00'],
      next: '12:10:00',
      missed: '11:50:00',
    })
  })
  test('one fires the newest, however late', () => {
    expect(due('one', '2026-01-01T10:00:00Z', '2026-01-01T10:09:59Z')).toEqual({ ticks: ['10:00:00'], next: '10:10:00' })
    expect(due('one', '2026-01-01T10:00:00Z', '2026-01-01T10:15:00Z')).toEqual({
      ticks: ['10:10:00'],
      next: '10:20:00',
      missed: '10:00:00',
    })
    expect(due('one', '2026-01-01T10:00:00Z', '2026-01-01T12:05:00Z')).toEqual({
      ticks: ['12:00:00'],
      next: '12:10:00',
      missed: '11:50:00',
    })
  })
  test('all fires every one, so many at a time, and goes on where it stopped', () => {
    expect(due('all', '2026-01-01T10:00:00Z', '2026-01-01T10:25:00Z')).toEqual({
      ticks: ['10:00:00', '10:10:00', '10:20:00'],
      next: '10:30:00',
    })
    expect(due('all', '2026-01-01T10:00:00Z', '2026-01-01T10:25:00Z', 2)).toEqual({ ticks: ['10:00:00', '10:10:00'], next: '10:20:00' })
    expect(due('all', '2026-01-01T10:20:00Z', '2026-01-01T10:25:00Z', 2)).toEqual({ ticks: ['10:20:00'], next: '10:30:00' })
  })
  test('a due instant that the text no longer has is fired all the same', () => {
    expect(due('all', '2026-01-01T10:03:00Z', '2026-01-01T10:11:00Z')).toEqual({ ticks: ['10:03:00', '10:10:00'], next: '10:20:00' })
    expect(due('none', '2026-01-01T10:03:00Z', '2026-01-01T10:03:30Z')).toEqual({ ticks: ['10:03:00'], next: '10:10:00' })
  })
  test('a text whose last tick has passed', () => {
    expect(
      dueTicks(new CronClock('0 0 30 2 *', 'UTC'), {
        dueAt: at('2026-01-01T10:00:00Z'),
        now: at('2026-01-01T10:00:01Z'),
        catchUp: 'none',
        limit: 1,
      }),
    ).toBe(undefined)
  })
})
