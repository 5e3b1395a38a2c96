import type { BenchServer } from './bench-server.ts'
import { machineFacts } from './machine-facts.ts'
import { type Goal, type Judged, judge, type Line, linesOf, type Ratio, ratioOf, type Sample } from './summary.ts'
import { loadFamily, type SystemOptions } from './systems/index.ts'
import { FAMILIES, type System, type TrialName } from './systems/system.ts'
import { type FigureName, type Figures, type Sizes, TRIALS } from './trials.ts'

export interface EngineBenchOptions extends SystemOptions, Sizes {
  /** Families, or systems by their names. Default: all. */
  readonly only?: readonly string[] | undefined
  readonly trials: readonly TrialName[]
  readonly runs: number
  /** Told what is about to be measured, and what cannot be. */
  readonly progress?: (text: string) => void
}

export interface EngineBenchResult {
  readonly bench: 'engine'
  readonly machine: Awaited<ReturnType<typeof machineFacts>>
  readonly sizes: Sizes & { readonly runs: number }
  readonly systems: Readonly<Record<string, string>>
  readonly figures: readonly Line[]
  readonly ratios: readonly Ratio[]
  readonly goals: readonly Judged[]
  /** Families that were not measured, and why. */
  readonly skipped: Readonly<Record<string, string>>
  /** Trials that ended in an error. */
  readonly failed: readonly { readonly run: number; readonly system: string; readonly trial: TrialName; readonly error: string }[]
}

/** Issue: the engine, whole. Peers by their best settings in the same run. */
const GOALS: readonly Goal[] = [
  {
    goal: 'direct drains as fast as graphile-worker, results kept',
    figure: 'drain',
    system: 'holdfast-direct',
    to: 'graphile-worker',
    atLeast: 1,
  },
  {
    goal: 'the same without a history, which graphile-worker has not either',
    figure: 'drain',
    system: 'holdfast-direct-no-history',
    to: 'graphile-worker',
    atLeast: 1,
  },
  {
    goal: 'direct, deleted on success, is faster than graphile-worker',
    figure: 'drain',
    system: 'holdfast-direct-keep-failures',
    to: 'graphile-worker',
    atLeast: 1.25,
  },
  { goal: 'staged is near direct', figure: 'drain', system: 'holdfast-staged', to: 'holdfast-direct', atLeast: 0.7 },
  ...['holdfast-direct', 'holdfast-staged'].flatMap((system): Goal[] => [
    { goal: `steps beat pg-boss's chained jobs, ${system}`, figure: 'steps', system, to: 'pg-boss', atLeast: 1.5 },
    { goal: `steps leave DBOS behind, ${system}`, figure: 'steps', system, to: 'dbos', atLeast: 20 },
    { goal: `steps leave Absurd behind, ${system}`, figure: 'steps', system, to: 'absurd', atLeast: 20 },
  ]),
  {
    goal: 'idle, direct starts as soon as graphile-worker',
    figure: 'idle_p50',
    system: 'holdfast-direct',
    to: 'graphile-worker',
    atMost: 1,
  },
  { goal: 'idle, staged starts within 6 ms', figure: 'idle_p50', system: 'holdfast-staged', atMost: 6 },
]
const COMPARED: readonly FigureName[] = ['drain', 'steps', 'enqueue', 'idle_p50', 'idle_p99', 'wal_enqueue', 'wal_drain']

/**
 * Every trial of every system, run after run. The systems take turns within each trial, and every second run goes the other way round, so that a machine that
 * gets slower or faster does so for all of them alike.
 */
export async function benchEngine(server: BenchServer, options: EngineBenchOptions): Promise<EngineBenchResult> {
  const { only = FAMILIES, trials, runs, progress = () => {} } = options
  const systems: System[] = []
  const skipped: Record<string, string> = {}
  const unknown = new Set(only)
  for (const family of FAMILIES) {
    // A family that cannot be loaded has no names; it is skipped where it was meant.
    const found = await loadFamily(family, options)
    const whole = unknown.delete(family)
    if (typeof found === 'string') {
      if (!whole) continue
      skipped[family] = found
      progress(`${family} is skipped: ${found}`)
    } else systems.push(...found.filter(({ name }) => unknown.delete(name) || whole))
  }
  if (unknown.size > 0)
    throw new RangeError(`nothing is named ${[...unknown].join(', ')}; there are the families ${FAMILIES.join(', ')}, and their systems`)

  const samples: Sample[] = []
  const failed: { run: number; system: string; trial: TrialName; error: string }[] = []
  for (let run = 1; run <= runs; run += 1) {
    for (const trial of trials) {
      const taking = systems.filter((system) => system.trials.includes(trial))
      for (const system of run % 2 === 1 ? taking : taking.toReversed()) {
        progress(`run ${run} of ${runs}: ${trial}, ${system.name}`)
        try {
          const figures = await TRIALS[trial](server, system, options)
          for (const [figure, value] of entriesOf(figures)) samples.push({ run, figure, system: system.name, value })
        } catch (error) {
          const text = error instanceof Error ? error.message : String(error)
          failed.push({ run, system: system.name, trial, error: text })
          progress(`  failed: ${text}`)
        }
      }
    }
  }

  const ours = systems.filter(({ family }) => family === 'holdfast').map(({ name }) => name)
  const others = systems.filter(({ family }) => family !== 'holdfast').map(({ name }) => name)
  const pairs = ours.flatMap((system) =>
    [...others, ...(system === 'holdfast-direct' ? [] : ['holdfast-direct'])].map((to) => [system, to] as const),
  )
  const { jobs, machines, samples: starts, warmUp, settleMs } = options
  return {
    bench: 'engine',
    machine: await machineFacts(server),
    sizes: { jobs, machines, samples: starts, warmUp, settleMs, runs },
    systems: Object.fromEntries(systems.map(({ name, settings }) => [name, settings])),
    figures: linesOf(samples),
    ratios: COMPARED.flatMap((figure) => pairs.flatMap(([system, to]) => ratioOf(samples, figure, system, to) ?? [])),
    goals: judge(GOALS, samples),
    skipped,
    failed,
  }
}

const entriesOf = (figures: Figures): [FigureName, number][] => Object.entries(figures) as [FigureName, number][]
