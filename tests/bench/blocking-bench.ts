import { setTimeout as sleep } from 'node:timers/promises'
import { Channels, type ProjectId } from '@holdfast/contracts'
import { type BenchServer, type Client, nowMs, open, until } from './bench-server.ts'
import { AHEAD, type Ahead, PARKED, UNLIMITED, underLimits } from './limited-jobs.ts'
import { machineFacts } from './machine-facts.ts'
import { type Goal, type Judged, judge, type Line, linesOf, type Ratio, ratioOf, rounded, type Sample } from './summary.ts'
import { holdfastSystems, holdfastUnder } from './systems/holdfast.ts'
import type { Producer, System } from './systems/system.ts'
import { median, pauseBetweenStarts, percentile, type Sizes, startLatency, TRIALS } from './trials.ts'
import { WorkerProcess } from './worker-process.ts'

type BlockingPart = 'latency' | 'drain'

export interface BlockingBenchOptions extends Sizes {
  readonly parts: readonly BlockingPart[]
  readonly flush: 'staged' | 'direct'
  /** Kinds of rows and of limits whose names contain one of these; drains without a limit are always measured. Default: all. */
  readonly only?: readonly string[]
  readonly runs: number
  /** Rows that stand before the jobs whose start is timed. */
  readonly ahead: number
  readonly progress?: (text: string) => void
}

/** Start latencies of jobs without a limit, on two databases in turn: one that is empty, and one with rows ahead. */
interface LatencyLine {
  readonly ahead: string
  readonly rows: number
  /** From the commit of those rows, inserted as runnable, until none of them is runnable; null where it was not reached in ten minutes. */
  readonly settled_ms: number | null
  /** The start of a job that is enqueued in the moment after their commit. */
  readonly start_while_settling_ms: number
  readonly p50_alone: number
  readonly p99_alone: number
  readonly p50_behind: number
  readonly p99_behind: number
  readonly p50_ratio: number
  readonly p99_ratio: number
  /** The p99 ratio of each run; `p99_ratio` is the middle one. */
  readonly p99_ratios: readonly number[]
  readonly goal: string
  readonly met: boolean
}

export interface BlockingBenchResult {
  readonly bench: 'blocking'
  readonly machine: Awaited<ReturnType<typeof machineFacts>>
  readonly flush: 'staged' | 'direct'
  readonly sizes: {
    readonly runs: number
    readonly ahead: number
    readonly samples: number
    readonly jobs: number
    readonly warmUp: number
  }
  readonly latencies: readonly LatencyLine[]
  readonly figures: readonly Line[]
  readonly ratios: readonly Ratio[]
  readonly goals: readonly Judged[]
  readonly failed: readonly { readonly run: number; readonly what: string; readonly error: string }[]
}

const MOST_P99_RATIO = 1.5
const LEAST_DRAIN_RATIO = 0.8

export async function benchBlocking(server: BenchServer, options: BlockingBenchOptions): Promise<BlockingBenchResult> {
  const { parts, flush, only, runs, ahead, samples, jobs, warmUp, progress = () => {} } = options
  const failed: { run: number; what: string; error: string }[] = []
  const attempt = async (run: number, what: string, work: () => Promise<void>): Promise<void> => {
    progress(`run ${run} of ${runs}: ${what}`)
    try {
      await work()
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error)
      failed.push({ run, what, error: text })
      progress(`  failed: ${text}`)
    }
  }

  const wanted = (name: string): boolean => name === UNLIMITED || only === undefined || only.some((part) => name.includes(part))
  const kinds = AHEAD.filter(({ name }) => wanted(name))
  const measured = new Map<Ahead, Behind[]>(kinds.map((kind) => [kind, []]))
  const limited = Object.entries(underLimits(jobs)).flatMap(([name, under]) => (wanted(name) ? [holdfastUnder(flush, name, under)] : []))
  const drained: Sample[] = []
  for (let run = 1; run <= runs; run += 1) {
    if (parts.includes('latency')) {
      for (const kind of kinds)
        await attempt(run, `start behind rows ${kind.name}`, async () => {
          measured.get(kind)?.push(await behind(server, kind, options))
        })
    }
    if (parts.includes('drain')) {
      for (const system of run % 2 === 1 ? limited : limited.toReversed())
        await attempt(run, `drain, ${system.name}`, async () => {
          const { drain, wal_drain, others_drain } = await TRIALS.drain(server, system, options)
          for (const [figure, value] of Object.entries({ drain, wal_drain, others_drain }) as ['drain', number | undefined][])
            if (value !== undefined) drained.push({ run, figure, system: system.name, value })
        })
    }
  }

  const unlimited = limited[0]?.name ?? ''
  const others = limited.slice(1).map(({ name }) => name)
  const goals: Goal[] = others.map((system) => ({
    goal: `${system} drains nearly as fast as without a limit`,
    figure: 'drain',
    system,
    to: unlimited,
    atLeast: LEAST_DRAIN_RATIO,
  }))
  return {
    bench: 'blocking',
    machine: await machineFacts(server),
    flush,
    sizes: { runs, ahead, samples, jobs, warmUp },
    latencies: [...measured].flatMap(([kind, runsOfKind]) => (runsOfKind.length === 0 ? [] : latencyLine(kind, ahead, runsOfKind))),
    figures: linesOf(drained),
    ratios: others.flatMap((system) => ratioOf(drained, 'drain', system, unlimited) ?? []),
    goals: judge(goals, drained),
    failed,
  }
}

interface Behind {
  readonly settledMs: number | null
  readonly whileSettlingMs: number
  readonly alone: readonly number[]
  readonly behind: readonly number[]
}

function latencyLine({ name }: Ahead, rows: number, runs: readonly Behind[]): LatencyLine {
  const middle = (of: (run: Behind) => number): number => rounded(median(runs.map(of)))
  const ratio =
    (share: number) =>
    (run: Behind): number =>
      percentile(run.behind, share) / percentile(run.alone, share)
  const settled = runs.flatMap(({ settledMs }) => settledMs ?? [])
  const p99Ratio = middle(ratio(0.99))
  return {
    ahead: name,
    rows,
    settled_ms: settled.length < runs.length ? null : rounded(median(settled)),
    start_while_settling_ms: middle((run) => run.whileSettlingMs),
    p50_alone: middle((run) => percentile(run.alone, 0.5)),
    p99_alone: middle((run) => percentile(run.alone, 0.99)),
    p50_behind: middle((run) => percentile(run.behind, 0.5)),
    p99_behind: middle((run) => percentile(run.behind, 0.99)),
    p50_ratio: middle(ratio(0.5)),
    p99_ratio: p99Ratio,
    p99_ratios: runs.map((run) => rounded(ratio(0.99)(run))),
    goal: `p99 ratio at most ${MOST_P99_RATIO}`,
    met: p99Ratio <= MOST_P99_RATIO,
  }
}

/** The whole engine on a database: scheduler, flusher where there is one, and the reaper, whose sweeps look at what waits. */
class Deployment implements AsyncDisposable {
  readonly client: Client
  readonly projectId: ProjectId
  readonly #producer: Producer
  readonly #worker: WorkerProcess
  readonly #opened: AsyncDisposableStack

  private constructor(client: Client, projectId: ProjectId, producer: Producer, worker: WorkerProcess, opened: AsyncDisposableStack) {
    this.client = client
    this.projectId = projectId
    this.#producer = producer
    this.#worker = worker
    this.#opened = opened
  }

  static async on(server: BenchServer, system: System): Promise<Deployment> {
    await using opening = new AsyncDisposableStack()
    const { url } = opening.use(await server.database())
    await system.prepare(url)
    const client = opening.use(await open(url))
    const producer = opening.use(await system.producer(url))
    for (const role of [...system.background, 'reaper']) {
      const process = opening.use(await WorkerProcess.spawn(system, role, url, {}))
      await process.start('noop')
    }
    const worker = opening.use(await WorkerProcess.spawn(system, 'worker', url, {}))
    await worker.start('ping')
    const { rows } = await client.query<{ id: ProjectId }>('SELECT id::text FROM holdfast.project')
    return new Deployment(client, rows[0]?.id ?? ('' as ProjectId), producer, worker, opening.move())
  }

  start(): Promise<number> {
    return startLatency(this.#worker, () => this.#producer.insertOne('ping'))
  }
  async startAfterPause(): Promise<number> {
    await pauseBetweenStarts()
    return this.start()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#opened.disposeAsync()
  }
}

/**
 * Two deployments on one server, the same but for the rows ahead, sampled in turn: whatever else happens on the machine happens to both. The rows are inserted
 * as runnable where they can be, and it is the engine that parks them.
 */
async function behind(server: BenchServer, kind: Ahead, { flush, ahead, samples, warmUp }: BlockingBenchOptions): Promise<Behind> {
  const system = holdfastSystems.find(({ name }) => name === `holdfast-${flush}`)
  if (system === undefined) throw new Error(`there is no system holdfast-${flush}`)
  await using alone = await Deployment.on(server, system)
  await using crowded = await Deployment.on(server, system)
  await kind.prepare(crowded.client, crowded.projectId)
  for (let n = 0; n < Math.min(50, warmUp); n += 1) for (const deployment of [alone, crowded]) await deployment.startAfterPause()

  await kind.insert(crowded.client, crowded.projectId, ahead)
  const insertedMs = nowMs()
  await crowded.client.query('SELECT pg_notify($1, $2)', [Channels.runnable, 'default'])
  const parked = kind.runnable ? until(crowded.client, PARKED, { everyMs: 20 }) : Promise.resolve(true)
  const [whileSettlingMs, settled] = await Promise.all([
    crowded.start(),
    parked.then((ok) => (ok ? (kind.runnable ? nowMs() - insertedMs : 0) : null)),
  ])
  // As autovacuum does within a minute; the samples are about the state that lasts.
  await crowded.client.query('VACUUM ANALYZE holdfast.instance')
  await sleep(Math.min(1_000, warmUp))

  const latencies: { alone: number[]; behind: number[] } = { alone: [], behind: [] }
  for (let sample = 0; sample < samples; sample += 1) {
    const turn: readonly (readonly ['alone' | 'behind', Deployment])[] = [
      ['alone', alone],
      ['behind', crowded],
    ]
    for (const [where, deployment] of sample % 2 === 0 ? turn : turn.toReversed()) latencies[where].push(await deployment.startAfterPause())
  }
  return { settledMs: settled, whileSettlingMs, alone: latencies.alone, behind: latencies.behind }
}
