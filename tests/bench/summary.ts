import { type FigureName, median, UNITS } from './trials.ts'

/** What one trial of one run has measured. */
export interface Sample {
  readonly run: number
  readonly figure: FigureName
  readonly system: string
  readonly value: number
}

export interface Line {
  readonly figure: FigureName
  readonly system: string
  readonly unit: string
  readonly median: number
  /** In the order of the runs. */
  readonly runs: readonly number[]
}

export interface Ratio {
  readonly figure: FigureName
  readonly system: string
  readonly to: string
  /**
   * The middle one of the ratios of each run. Two trials of one run stand minutes apart at most: a machine that gets slower during the hour takes both along,
   * and a neighbour who disturbs one trial spoils one ratio and not the middle one.
   */
  readonly median: number
  readonly runs: readonly number[]
}

/** Three digits are more than a noisy machine can tell; whole numbers are kept whole. */
export const rounded = (value: number): number => (Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(3)))

export function linesOf(samples: readonly Sample[]): Line[] {
  const groups = Map.groupBy(samples, ({ figure, system }) => `${figure}|${system}`)
  return [...groups.values()].flatMap((group) => {
    const [first] = group
    if (first === undefined) return []
    const { figure, system } = first
    const values = group.map(({ value }) => value)
    return [{ figure, system, unit: UNITS[figure], median: rounded(median(values)), runs: values.map(rounded) }]
  })
}

/** Of `figure`, `system` by `to`, run by run; undefined where no run has both. */
export function ratioOf(samples: readonly Sample[], figure: FigureName, system: string, to: string): Ratio | undefined {
  const of = (name: string) =>
    new Map(samples.filter((each) => each.figure === figure && each.system === name).map((each) => [each.run, each.value]))
  const below = of(to)
  const runs = [...of(system)].flatMap(([run, value]) => {
    const other = below.get(run)
    return other === undefined ? [] : [value / other]
  })
  return runs.length === 0 ? undefined : { figure, system, to, median: rounded(median(runs)), runs: runs.map(rounded) }
}

/** What is hoped for, in one sentence each; missed goals are told, not hidden. */
export interface Goal {
  readonly goal: string
  readonly figure: FigureName
  readonly system: string
  /** A ratio to this system; without it the figure itself. */
  readonly to?: string
  readonly atLeast?: number
  readonly atMost?: number
}

export interface Judged extends Goal {
  readonly got: number
  readonly met: boolean
}

/** Of the goals, those that this run can tell about. */
export function judge(goals: readonly Goal[], samples: readonly Sample[]): Judged[] {
  return goals.flatMap((goal) => {
    const { figure, system, to, atLeast = Number.NEGATIVE_INFINITY, atMost = Number.POSITIVE_INFINITY } = goal
    const got =
      to === undefined
        ? linesOf(samples).find((line) => line.figure === figure && line.system === system)?.median
        : ratioOf(samples, figure, system, to)?.median
    return got === undefined ? [] : [{ ...goal, got, met: got >= atLeast && got <= atMost }]
  })
}

export function table(heads: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  const all = [heads, ...rows.map((row) => row.map(String))]
  const widths = heads.map((_head, column) => Math.max(...all.map((row) => row[column]?.length ?? 0)))
  return all
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}

export const goalTable = (judged: readonly Judged[]): string =>
  table(
    ['goal', 'wanted', 'got', ''],
    judged.map(({ goal, atLeast, atMost, got, met }) => [
      goal,
      atLeast === undefined ? `≤ ${atMost}` : `≥ ${atLeast}`,
      got,
      met ? 'met' : 'MISSED',
    ]),
  )
