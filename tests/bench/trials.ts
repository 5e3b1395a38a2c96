import { setTimeout as sleep } from 'node:timers/promises'
import { type BenchServer, type Client, nowMs, open, transactions, until, walBytes } from './bench-server.ts'
import { cpuTime, usedByOthers } from './cpu-time.ts'
import type { SystemOptions } from './systems/index.ts'
import type { System, TrialName, Work } from './systems/system.ts'
import { callsOf } from './systems/system.ts'
import { WorkerProcess } from './worker-process.ts'

export type FigureName =
  | 'drain'
  | 'steps'
  | 'enqueue'
  | 'idle_p50'
  | 'idle_p99'
  | 'wal_enqueue'
  | 'wal_drain'
  | 'tx_drain'
  | 'cpu_worker'
  | 'cpu_postgres'
  | 'others_drain'
  | 'others_steps'

export const UNITS: Readonly<Record<FigureName, string>> = {
  drain: 'jobs/s',
  steps: 'steps/s',
  enqueue: 'jobs/s',
  idle_p50: 'ms',
  idle_p99: 'ms',
  wal_enqueue: 'bytes/job',
  wal_drain: 'bytes/job',
  tx_drain: 'transactions/job',
  cpu_worker: 'µs/job',
  cpu_postgres: 'µs/job',
  others_drain: '% of a core',
  others_steps: '% of a core',
}

export type Figures = Partial<Record<FigureName, number>>

export interface Sizes {
  /** Jobs of a drain, before a system's share. */
  readonly jobs: number
  /** Machines of three steps, before a system's share. */
  readonly machines: number
  /** Starts that are timed on an idle system. */
  readonly samples: number
  /** Jobs before the measurement, for the code to be compiled: a system that runs is what is measured. */
  readonly warmUp: number
  /** Pause before a measurement, for backends to report and caches to be written. */
  readonly settleMs: number
}

export const FULL: Sizes = { jobs: 20_000, machines: 2_000, samples: 200, warmUp: 5_000, settleMs: 1_000 }

export type TrialOptions = SystemOptions & Sizes

export const TRIALS: Readonly<Record<TrialName, (server: BenchServer, system: System, options: TrialOptions) => Promise<Figures>>> = {
  drain: (server, system, options) => drain(server, system, 'noop', options.jobs, options),
  steps: async (server, system, options) => {
    const { drain: steps, others_drain: others } = await drain(server, system, 'steps3', options.machines, options)
    return { ...(steps === undefined ? {} : { steps }), ...(others === undefined ? {} : { others_steps: others }) }
  },
  idle,
}

/** A system with its processes, on a database of its own. */
async function withSystem<Result>(
  server: BenchServer,
  system: System,
  options: SystemOptions,
  measure: (running: { url: string; worker: WorkerProcess; monitor: Client; pids: readonly number[] }) => Promise<Result>,
): Promise<Result> {
  await using opened = new AsyncDisposableStack()
  const { url } = opened.use(await server.database())
  await system.prepare(url)
  const monitor = opened.use(await open(url))
  const background: WorkerProcess[] = []
  for (const role of system.background) {
    const process = opened.use(await WorkerProcess.spawn(system, role, url, options))
    await process.start('noop')
    background.push(process)
  }
  const worker = opened.use(await WorkerProcess.spawn(system, 'worker', url, options))
  // Awaited here, or the processes would be gone before they are used.
  return await measure({ url, worker, monitor, pids: [worker.pid, ...background.map(({ pid }) => pid)] })
}

/** Enqueues while nothing is taken, then times the worker from its first call of a handler until the database shows that everything has ended. */
async function drain(server: BenchServer, system: System, work: Work, wanted: number, options: TrialOptions): Promise<Figures> {
  const count = Math.ceil(wanted * system.share)
  return withSystem(server, system, options, async ({ url, worker, monitor, pids }) => {
    await using producer = await system.producer(url)
    const warmUp = Math.min(count, Math.ceil(options.warmUp * system.share))
    await producer.insert(work, warmUp)
    await worker.start(work, warmUp)
    await handled(system, worker, monitor)
    await (system.hold === undefined ? worker.stop() : system.hold(url, true))
    await sleep(options.settleMs)

    const walBefore = await walBytes(monitor)
    const insertedFromMs = nowMs()
    await producer.insert(work, count)
    const enqueueSeconds = (nowMs() - insertedFromMs) / 1_000
    const walInserted = (await walBytes(monitor)) - walBefore
    // Statistics as a table has them that was not made a second ago, and no full-page images in what follows: the same for all.
    await monitor.query('VACUUM ANALYZE')
    await monitor.query('CHECKPOINT')
    await sleep(options.settleMs)

    const [wal, tx, cpu] = [await walBytes(monitor), await transactions(monitor), cpuTime(server.pid, pids)]
    const lookedAtMs = nowMs()
    if (system.hold === undefined) await worker.start(work, count)
    else {
      await worker.expect(count)
      await system.hold(url, false)
    }
    const firstMs = await handled(system, worker, monitor)
    const endMs = nowMs()
    const used = cpuTime(server.pid, pids)
    const walUsed = (await walBytes(monitor)) - wal
    await worker.stop()
    await sleep(options.settleMs)
    // Not without those of the background processes, which report a second later, nor without the few of ours.
    const txUsed = (await transactions(monitor)) - tx
    const each = (total: number): number => total / count
    return {
      drain: (count * callsOf(work)) / ((endMs - firstMs) / 1_000),
      enqueue: count / enqueueSeconds,
      wal_enqueue: each(walInserted),
      wal_drain: each(walUsed),
      tx_drain: each(txUsed),
      ...(cpu === undefined || used === undefined
        ? {}
        : {
            cpu_worker: each(used.workers - cpu.workers),
            cpu_postgres: each(used.postgres - cpu.postgres),
            others_drain: (100 * usedByOthers(cpu, used)) / ((endMs - lookedAtMs) * 1_000),
          }),
    }
  })
}

/** Waits until the worker has handled what it was told to expect, and the database shows it; answers when its first handler was called. */
async function handled(system: System, worker: WorkerProcess, monitor: Client): Promise<number> {
  const { firstMs } = await worker.called()
  if (!(await until(monitor, system.finished))) throw new Error(`${system.name} called every handler but did not finish within ten minutes`)
  return firstMs
}

/** From the call that inserts a job to the first line of its handler, on an idle system, one after the other with pauses. */
async function idle(server: BenchServer, system: System, options: TrialOptions): Promise<Figures> {
  return withSystem(server, system, options, async ({ url, worker }) => {
    await using producer = await system.producer(url)
    await worker.start('ping')
    await sleep(options.settleMs)
    const latencies: number[] = []
    // The first ones find code that has never run; they are not counted.
    for (let sample = -Math.min(20, options.samples); sample < options.samples; sample += 1) {
      await pauseBetweenStarts()
      const latencyMs = await startLatency(worker, () => producer.insertOne('ping'))
      if (sample >= 0) latencies.push(latencyMs)
    }
    await worker.stop()
    return { idle_p50: percentile(latencies, 0.5), idle_p99: percentile(latencies, 0.99) }
  })
}

/** 20 to 50 ms: an idle system, and random, so that no poll is met in step. */
export const pauseBetweenStarts = (): Promise<void> => sleep(20 + Math.random() * 30)

export async function startLatency(worker: WorkerProcess, insertOne: () => Promise<void>): Promise<number> {
  const started = worker.pinged()
  const insertedMs = nowMs()
  const [startedMs] = await Promise.all([started, insertOne()])
  return startedMs - insertedMs
}

/** The smallest sample that at least `share` of all do not exceed. */
export function percentile(samples: readonly number[], share: number): number {
  const sorted = [...samples].sort((a, b) => a - b)
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? Number.NaN
}

/** The middle one, or the mean of the two in the middle. */
export function median(samples: readonly number[]): number {
  const sorted = [...samples].sort((a, b) => a - b)
  const half = sorted.length >> 1
  const [low, high] = [sorted[sorted.length % 2 === 0 ? half - 1 : half], sorted[half]]
  return low === undefined || high === undefined ? Number.NaN : (low + high) / 2
}
