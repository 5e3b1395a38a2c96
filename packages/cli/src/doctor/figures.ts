/** `12,345` */
export const count = (value: number): string => Math.round(value).toLocaleString('en-US')

/** `3.4 MB` */
export function bytes(value: number): string {
  for (const [unit, size] of UNITS) if (value >= size) return `${(value / size).toFixed(1)} ${unit}`
  return `${value} B`
}
const UNITS = [
  ['TB', 2 ** 40],
  ['GB', 2 ** 30],
  ['MB', 2 ** 20],
  ['kB', 2 ** 10],
] as const

export const percent = (share: number): string => `${Math.round(share * 100)} %`

/** `1 row`, `5 rows`. */
export const plural = (value: number, one: string, many = `${one}s`): string => `${count(value)} ${value === 1 ? one : many}`
