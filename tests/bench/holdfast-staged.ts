import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Channels, type ProjectId } from '@holdfast/contracts'
import { createProject, enqueue, HintSender, notify, setQueuePaused } from '@holdfast/queries'
import { connect, type Db, migrate } from '@holdfast/schema'
import { type BenchServer, counters, type Figure, open, percentile, until } from './measured.ts'

const ROOT = join(import.meta.dirname, '../..')
const BATCH = 1_000
/** Run before the measurement, by every system that has processes of its own. */
export const WARM_UP = 5_000
// By the partial indexes and not over the table: this is asked again and again while it is being measured.
const DONE = `SELECT NOT EXISTS (SELECT FROM holdfast.instance WHERE status = 'runnable') AND NOT EXISTS (SELECT FROM holdfast.instance WHERE status = 'executing')
  AND NOT EXISTS (SELECT FROM holdfast.outcome) AS ok`

class Worker {
  readonly #child: ChildProcess
  private constructor(child: ChildProcess) {
    this.#child = child
  }
  static async start(role: 'scheduler' | 'flusher', url: string, history: 'all' | 'off'): Promise<Worker> {
    const child = fork(join(import.meta.dirname, 'holdfast-worker.ts'), [role, url, history], {
      execArgv: ['--conditions=@holdfast/source'],
    })
    const worker = new Worker(child)
    await worker.said('ready')
    return worker
  }
  async said<Key extends string>(key: Key): Promise<number> {
    for (;;) {
      const [message] = (await once(this.#child, 'message')) as [Record<string, unknown>]
      if (key in message) return Number(message[key])
    }
  }
  async stop(): Promise<void> {
    const exited = once(this.#child, 'exit')
    this.#child.send('stop')
    await exited
  }
}

interface Prepared {
  readonly url: string
  readonly db: Db
  readonly projectId: ProjectId
}
async function prepare(server: BenchServer, name: string): Promise<Prepared> {
  const url = await server.fresh(name)
  await migrate({ connectionString: url, folder: join(ROOT, 'migrations') })
  const db = connect({ connectionString: url, max: 4 })
  const [project] = await createProject(db, { name: 'default' })
  if (project === undefined) throw new Error('no project')
  return { url, db, projectId: project.id }
}

async function insert({ db, projectId }: Prepared, machine: string, count: number): Promise<void> {
  for (let from = 0; from < count; from += BATCH) {
    await enqueue(db, {
      projectId,
      declaredOnly: false,
      instances: Array.from({ length: Math.min(BATCH, count - from) }, (_, index) => ({ machine, state: `{"n":${from + index}}` })),
    })
  }
}

/** Enqueue and drain of no-op jobs, or of machines with three steps; one scheduler process and one flusher process, as `npm start` has them. */
export async function drainStaged(server: BenchServer, count: number, history: 'all' | 'off', kind: 'noop' | 'three'): Promise<Figure[]> {
  const prepared = await prepare(server, 'bench_staged')
  const system = 'holdfast-staged'
  const settings = `defaults, 1 scheduler and 1 flusher process, results kept, history ${history}, enqueue in batches of ${BATCH}`
  const [flusher, scheduler] = await Promise.all([
    Worker.start('flusher', prepared.url, history),
    Worker.start('scheduler', prepared.url, history),
  ])
  // What is measured is a system that runs: its code is loaded and has been used.
  const monitor = await open(prepared.url)
  await insert(prepared, kind, WARM_UP)
  await until(monitor, DONE)
  await sleep(2_000)
  await setQueuePaused(prepared.db, { queue: 'default', paused: true })
  const enqueueStartedMs = performance.now()
  await insert(prepared, kind, count)
  const enqueueMs = performance.now() - enqueueStartedMs
  await monitor.query('VACUUM ANALYZE holdfast.instance')
  await monitor.query('CHECKPOINT')
  await sleep(1_000)
  const before = await counters(monitor)
  await setQueuePaused(prepared.db, { queue: 'default', paused: false })
  const startMs = performance.now()
  await notify(prepared.db, { channel: Channels.runnable, payloads: ['default'] })
  await until(monitor, DONE)
  const seconds = (performance.now() - startMs) / 1_000
  await Promise.all([scheduler.stop(), flusher.stop()])
  const after = await counters(monitor)
  await monitor.end()
  await prepared.db.destroy()
  const steps = kind === 'three' ? count * 3 : count
  if (kind === 'three') return [{ figure: 'steps3', system, value: Math.round(steps / seconds), unit: 'steps/s', settings }]
  return [
    { figure: 'drain', system, value: Math.round(count / seconds), unit: 'jobs/s', settings },
    { figure: 'enqueue', system, value: Math.round(count / (enqueueMs / 1_000)), unit: 'jobs/s', settings },
    {
      figure: 'wal_per_job',
      system,
      value: Math.round((after.walBytes - before.walBytes) / count),
      unit: 'bytes',
      settings: `${settings}; drain only`,
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

/** From the insert's call to the first line of its step, on an idle system, one after the other with pauses. */
export async function idleStaged(server: BenchServer, samples: number): Promise<Figure[]> {
  const prepared = await prepare(server, 'bench_idle')
  const [flusher, scheduler] = await Promise.all([
    Worker.start('flusher', prepared.url, 'all'),
    Worker.start('scheduler', prepared.url, 'all'),
  ])
  const hints = new HintSender({ db: prepared.db })
  const latencies: number[] = []
  await sleep(1_500)
  for (let sample = 0; sample < samples; sample += 1) {
    await sleep(20 + Math.random() * 30)
    const heard = scheduler.said('ping')
    const insertedMs = performance.timeOrigin + performance.now()
    const [row] = await enqueue(prepared.db, { projectId: prepared.projectId, declaredOnly: false, instances: [{ machine: 'ping' }] })
    for (const queue of row?.queues ?? []) hints.send(Channels.runnable, queue)
    latencies.push((await heard) - insertedMs)
  }
  await Promise.all([flusher.stop(), scheduler.stop()])
  await hints.close()
  await prepared.db.destroy()
  const settings = 'defaults, insert by statement and hint as the api does'
  return [
    { figure: 'idle_p50', system: 'holdfast-staged', value: Number(percentile(latencies, 0.5).toFixed(2)), unit: 'ms', settings },
    { figure: 'idle_p99', system: 'holdfast-staged', value: Number(percentile(latencies, 0.99).toFixed(2)), unit: 'ms', settings },
  ]
}
