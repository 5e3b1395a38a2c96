import { setTimeout as sleep } from 'node:timers/promises'
import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import { WARM_UP } from './holdfast-staged.ts'
import { type BenchServer, counters, type Figure, open, percentile, until } from './measured.ts'

const logger = new Logger(() => () => {})
// Pinned in the catalog; the package does not export its manifest.
const version = '0.18.0'
const system = 'graphile-worker'
// Its best settings on this kind of machine: a local queue and completions in batches.
const BEST = { concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: 1_000 }, completeJobBatchDelay: 20, failJobBatchDelay: 20 }
const EMPTY = 'SELECT NOT EXISTS (SELECT FROM graphile_worker._private_jobs) AS ok'
const settings = `${version}, 1 process, concurrency 24, localQueue 1000, completion batch 20 ms, addJobs 1000`

async function prepare(server: BenchServer, name: string): Promise<string> {
  const url = await server.fresh(name)
  const installing = await makeWorkerUtils({ connectionString: url, logger })
  await installing.migrate()
  await installing.release()
  return url
}

async function insert(url: string, identifier: string, count: number): Promise<number> {
  const adding = await makeWorkerUtils({ connectionString: url, logger })
  const startedMs = performance.now()
  for (let from = 0; from < count; from += 1_000) {
    await adding.addJobs(
      Array.from({ length: Math.min(1_000, count - from) }, (_, index) => ({ identifier, payload: { n: from + index } })),
    )
  }
  const ms = performance.now() - startedMs
  await adding.release()
  return ms
}

async function warmUp(url: string): Promise<void> {
  await insert(url, 'noop', WARM_UP)
  const monitor = await open(url)
  const runner = await run({
    connectionString: url,
    logger,
    noHandleSignals: true,
    taskList: { noop: async () => {} },
    preset: { worker: { connectionString: url, ...BEST } },
  })
  await until(monitor, EMPTY)
  await runner.stop()
  await monitor.end()
}

export async function drainGraphile(server: BenchServer, count: number): Promise<Figure[]> {
  const url = await prepare(server, 'bench_graphile')
  await warmUp(url)
  const enqueueMs = await insert(url, 'noop', count)
  const monitor = await open(url)
  await monitor.query('CHECKPOINT')
  const before = await counters(monitor)
  let firstMs = 0
  const runner = await run({
    connectionString: url,
    logger,
    noHandleSignals: true,
    taskList: {
      noop: async () => {
        if (firstMs === 0) firstMs = performance.now()
      },
    },
    preset: { worker: { connectionString: url, ...BEST } },
  })
  await until(monitor, EMPTY)
  const seconds = (performance.now() - firstMs) / 1_000
  await runner.stop()
  const after = await counters(monitor)
  await monitor.end()
  return [
    { figure: 'drain', system, value: Math.round(count / seconds), unit: 'jobs/s', settings },
    { figure: 'enqueue', system, value: Math.round(count / (enqueueMs / 1_000)), unit: 'jobs/s', settings },
    {
      figure: 'wal_per_job',
      system,
      value: Math.round((after.walBytes - before.walBytes) / count),
      unit: 'bytes',
      settings: `${settings}; drain only; jobs are deleted`,
    },
    {
      figure: 'tx_per_job',
      system,
      value: Number(((after.transactions - before.transactions) / count).toFixed(4)),
      unit: 'transactions',
      settings: `${settings}; drain only`,
    },
  ]
}

/** Three chained jobs: not a workflow, since a crash between the next job and the completion of this one runs both twice. */
export async function stepsGraphile(server: BenchServer, count: number): Promise<Figure[]> {
  const url = await prepare(server, 'bench_graphile3')
  await insert(url, 's1', count)
  const monitor = await open(url)
  let firstMs = 0
  const chain = (next: string) => async (payload: unknown, helpers: { addJob(identifier: string, payload: unknown): Promise<unknown> }) => {
    if (firstMs === 0) firstMs = performance.now()
    await helpers.addJob(next, payload)
  }
  const runner = await run({
    connectionString: url,
    logger,
    noHandleSignals: true,
    taskList: { s1: chain('s2'), s2: chain('s3'), s3: async () => {} } as never,
    preset: { worker: { connectionString: url, ...BEST } },
  })
  await until(monitor, EMPTY)
  const seconds = (performance.now() - firstMs) / 1_000
  await runner.stop()
  await monitor.end()
  return [{ figure: 'steps3', system, value: Math.round((count * 3) / seconds), unit: 'steps/s', settings: `${settings}, chained jobs` }]
}

export async function idleGraphile(server: BenchServer, samples: number): Promise<Figure[]> {
  const url = await prepare(server, 'bench_graphile_idle')
  let heard: (atMs: number) => void = () => {}
  const runner = await run({
    connectionString: url,
    logger,
    noHandleSignals: true,
    taskList: { ping: async () => heard(performance.now()) },
    preset: { worker: { connectionString: url } },
  })
  const adding = await makeWorkerUtils({ connectionString: url, logger })
  const latencies: number[] = []
  await sleep(1_500)
  for (let sample = 0; sample < samples; sample += 1) {
    await sleep(20 + Math.random() * 30)
    const { promise, resolve } = Promise.withResolvers<number>()
    heard = resolve
    const insertedMs = performance.now()
    await adding.addJob('ping', {})
    latencies.push((await promise) - insertedMs)
  }
  await runner.stop()
  await adding.release()
  const idle = `${version}, defaults`
  return [
    { figure: 'idle_p50', system, value: Number(percentile(latencies, 0.5).toFixed(2)), unit: 'ms', settings: idle },
    { figure: 'idle_p99', system, value: Number(percentile(latencies, 0.99).toFixed(2)), unit: 'ms', settings: idle },
  ]
}
