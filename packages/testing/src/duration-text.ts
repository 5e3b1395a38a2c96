const UNITS: readonly (readonly [string, number])[] = [
  ['day', 86_400_000],
  ['hour', 3_600_000],
  ['minute', 60_000],
  ['second', 1_000],
]

/** `90_000` as `1.5 minutes`, for people. */
export function durationText(ms: number): string {
  const [unit, unitMs] = UNITS.find(([, each]) => Math.abs(ms) >= each) ?? ['ms', 1]
  const amount = Math.round((ms / unitMs) * 10) / 10
  return unit === 'ms' ? `${Math.round(ms)} ms` : `${amount} ${unit}${amount === 1 ? '' : 's'}`
}
