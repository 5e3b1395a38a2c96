const UNITS_MS = Object.freeze({
  ms: 1,
  millisecond: 1,
  s: 1_000,
  second: 1_000,
  min: 60_000,
  minute: 60_000,
  h: 3_600_000,
  hour: 3_600_000,
  d: 86_400_000,
  day: 86_400_000,
  week: 604_800_000,
})
type Unit = keyof typeof UNITS_MS

/** `1500` (milliseconds), or a number and a unit: `'250 ms'`, `'3 days'`, `'1 hour'`, `'90 s'`. */
export type Duration = number | `${number} ${Unit | `${Unit}s`}` | `${number}${Unit}`

/** Longest delay or timeout: 100 years, what the database's CHECK allows. */
export const MAX_DURATION_MS = 3_155_760_000_000

/** Whole milliseconds of `duration`. Throws a TypeError for what is not a duration, is negative, or exceeds {@link MAX_DURATION_MS}. */
export function durationMs(duration: Duration): number {
  const ms = typeof duration === 'number' ? duration : parse(duration)
  if (!Number.isFinite(ms) || ms < 0 || ms > MAX_DURATION_MS) {
    throw new TypeError(`not a duration: ${JSON.stringify(duration)}; give milliseconds or a text like '3 days', from 0 to 100 years`)
  }
  return Math.round(ms)
}

function parse(text: string): number {
  const [, amount, unit] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*$/.exec(text) ?? []
  if (amount === undefined || unit === undefined) return Number.NaN
  const known =
    (UNITS_MS as Record<string, number | undefined>)[unit] ??
    (unit.endsWith('s') ? (UNITS_MS as Record<string, number | undefined>)[unit.slice(0, -1)] : undefined)
  return known === undefined ? Number.NaN : Number(amount) * known
}
