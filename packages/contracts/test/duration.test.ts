import { describe, expect, test } from 'vitest'
import { type Duration, durationMs, MAX_DURATION_MS } from '../src/index.ts'

describe('durations', () => {
  test.each<[Duration, number]>([
    [0, 0],
    [1_500, 1_500],
    ['250 ms', 250],
    ['90 s', 90_000],
    ['1 second', 1_000],
    ['2 minutes', 120_000],
    ['1 hour', 3_600_000],
    ['1.5 hours', 5_400_000],
    ['3 days', 259_200_000],
    ['2 weeks', 1_209_600_000],
    ['5min', 300_000],
    [MAX_DURATION_MS, MAX_DURATION_MS],
  ])('%s', (duration, ms) => {
    expect(durationMs(duration)).toBe(ms)
  })

  test.each([-1, Number.NaN, Number.POSITIVE_INFINITY, MAX_DURATION_MS + 1, 'soon', '3 fortnights', '-1 s', '', '1'])(
    '%s is refused',
    (wrong) => {
      expect(() => durationMs(wrong as Duration)).toThrow(/not a duration/)
    },
  )
})
