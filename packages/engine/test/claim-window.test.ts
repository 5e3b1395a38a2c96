import type { ClaimedRow } from '@holdfast/queries'
import { expect, test } from 'vitest'
import { ClaimWindow } from '../src/claim-window.ts'

const rows = (status: ClaimedRow['status'], count: number, key: string | null = 'g'): ClaimedRow[] =>
  Array.from({ length: count }, () => ({ status, concurrency_key: key }) as ClaimedRow)

/** One claim of a queue that wants `limit` more; `answer` says what comes of it. */
const look = (to: ClaimWindow, limit: number, nowMs: number, answer: (look: { window: number; park: boolean }) => ClaimedRow[]) => {
  const given = to.next(limit, nowMs)
  return { ...given, more: to.looked(answer(given), { limit, ...given }, nowMs) }
}

test('without limits a claim looks at as many as are wanted, and once', () => {
  const to = new ClaimWindow()
  expect(look(to, 500, 0, () => rows('executing', 500, null))).toEqual({ window: 500, park: false, more: false })
  expect(look(to, 500, 1, () => rows('executing', 3, null))).toEqual({ window: 500, park: false, more: false })
  expect(look(to, 500, 2, () => [])).toEqual({ window: 500, park: false, more: false })
})

test('where keys are let go as fast as steps run, nobody is parked, and the window follows what comes through', () => {
  const to = new ClaimWindow()
  look(to, 1_000, 0, () => rows('executing', 1_000))
  expect(look(to, 1_000, 20, () => [...rows('executing', 100), ...rows('runnable', 900)])).toEqual({
    window: 1_000,
    park: false,
    more: false,
  })
  expect(look(to, 1_000, 40, () => [...rows('executing', 120), ...rows('runnable', 30)])).toEqual({ window: 150, park: false, more: false })
  expect(look(to, 1_000, 60, ({ window }) => rows('executing', window))).toEqual({ window: 180, park: false, more: true })
  expect(to.next(1_000, 61)).toEqual({ window: 360, park: false })
})

test('a front that does not move is cleared at once: wide looks that park, until nobody is denied', () => {
  const to = new ClaimWindow()
  expect(look(to, 100, 0, () => [...rows('executing', 4), ...rows('runnable', 96)])).toEqual({ window: 100, park: false, more: true })
  expect(look(to, 96, 1, () => rows('throttled', 1_000))).toEqual({ window: 1_000, park: true, more: true })
  expect(look(to, 96, 2, () => [...rows('throttled', 10), ...rows('executing', 50, null)])).toEqual({
    window: 1_000,
    park: true,
    more: true,
  })
  expect(look(to, 46, 3, () => rows('executing', 46, null))).toEqual({ window: 1_000, park: true, more: false })
  expect(to.next(100, 4).park).toBe(false)
})

test('one that stops moving is cleared after a tenth of a second', () => {
  const to = new ClaimWindow()
  look(to, 200, 0, () => rows('executing', 200))
  expect(look(to, 200, 50, () => rows('runnable', 200)).more).toBe(false)
  expect(to.next(200, 99).park).toBe(false)
  expect(to.next(200, 100)).toEqual({ window: 1_000, park: true })
})
