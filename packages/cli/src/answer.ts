import type { ExitCode } from './exit-code.ts'

/** What a command has to say: once as a document for programs, once as text for people. */
export interface Answer {
  readonly document: unknown
  readonly text: string
  /** Default 0. */
  readonly exitCode?: ExitCode
}

export type Cell = string | number | boolean | null | undefined

/** Columns as wide as their widest cell; numbers to the right. A line of its own says so when there is nothing. */
export function table(head: readonly string[], rows: readonly (readonly Cell[])[], empty: string): string {
  if (rows.length === 0) return empty
  const cells = rows.map((row) => row.map(shown))
  const widths = head.map((name, column) => Math.max(name.length, ...cells.map((row) => row[column]?.length ?? 0)))
  const right = head.map((_name, column) => rows.every((row) => typeof row[column] === 'number' || row[column] == null))
  const line = (row: readonly string[]): string =>
    row
      .map((cell, column) => (right[column] ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0)))
      .join('  ')
      .trimEnd()
  return [line(head), ...cells.map(line)].join('\n')
}

/** `name  value` lines; names without a value are left out. */
export function fields(entries: Readonly<Record<string, unknown>>): string {
  const present = Object.entries(entries).filter(([, value]) => value !== null && value !== undefined)
  const width = Math.max(0, ...present.map(([name]) => name.length))
  return present
    .map(([name, value]) => `${name.padEnd(width)}  ${typeof value === 'object' ? JSON.stringify(value) : shown(value as Cell)}`)
    .join('\n')
}

// A terminal acts on control characters, and names come from whoever may enqueue.
const CONTROL = /\p{Cc}/gu
const shown = (cell: Cell): string => (cell === null || cell === undefined ? '' : String(cell).replaceAll(CONTROL, '\uFFFD'))

/** `340 ms`, `12 s`, `5 min`, `3 h`, `2 d`: how long, to the precision that a person needs. */
export function age(ms: number | null): string {
  if (ms === null) return ''
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 120_000) return `${Math.round(ms / 1_000)} s`
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`
  return `${Math.round(ms / 86_400_000)} d`
}
