import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Channels, type ProjectId } from '@holdfast/contracts'
import { Flusher, job, type Machine, machine, Reaper, Scheduler } from '@holdfast/engine'
import { createProject, enqueue, HintSender, Listener, type NewInstance, notify, setQueuePaused } from '@holdfast/queries'
import {
  type ConnectOptions,
  connect,
  connectOne,
  type Db,
  DatabaseRoles,
  engineSessionSettings,
  migrate,
  type Role,
} from '@holdfast/schema'
import { type Client, open } from '../bench-server.ts'
import { type Called, pieces, type Producer, type System, type TrialName, type Work } from './system.ts'

const ROOT = join(import.meta.dirname, '../../..')
const BATCH = 1_000

/** How the engine is set; everything else is its default. */
interface HoldfastSettings {
  readonly flush: 'staged' | 'direct'
  readonly history?: 'all' | 'failures' | 'off'
  readonly keep?: 'all' | 'failures'
  readonly inline?: boolean
}

/** Limits under which jobs are enqueued, for the benchmark of limits. */
export interface UnderLimit {
  /** In an empty database, with the id of its project. */
  declare?(client: Client, projectId: ProjectId): Promise<void>
  fields(n: number): Partial<NewInstance>
}

const MACHINE_OF: Readonly<Record<Work, string>> = { noop: 'noop', steps3: 'three', ping: 'ping' }

// By the partial indexes and not over the table. A row that a limit has parked is not looked for: every handler has been called when this is asked.
const FINISHED = `SELECT NOT EXISTS (SELECT FROM holdfast.instance WHERE status = 'runnable') AND NOT EXISTS (SELECT FROM holdfast.instance WHERE status = 'executing')
  AND NOT EXISTS (SELECT FROM holdfast.outcome) AS ok`

function holdfast(name: string, settings: HoldfastSettings, trials: readonly TrialName[], under?: UnderLimit): System {
  const { flush, history = 'all', keep = 'all', inline = false } = settings
  return {
    name,
    family: 'holdfast',
    settings: `defaults, flush ${flush}, history ${history}, keep ${keep}${inline ? ', inline steps' : ''}, ${
      flush === 'staged' ? '1 scheduler and 1 flusher process' : '1 scheduler process'
    }, enqueue in batches of ${BATCH}`,
    trials,
    share: 1,
    background: flush === 'staged' ? ['flusher'] : [],
    finished: FINISHED,

    async prepare(url) {
      await migrate({ connectionString: url, folder: join(ROOT, 'migrations') })
      const db = connect({ connectionString: url, max: 1 })
      const [project] = await createProject(db, { name: 'default' })
      await db.destroy()
      if (project === undefined) throw new Error('the project was not created')
      if (under?.declare === undefined) return
      await using client = await open(url)
      await under.declare(client, project.id)
    },

    producer: (url) => HoldfastProducer.open(url, under),

    async hold(url, held) {
      const db = connect({ connectionString: url, max: 1 })
      await setQueuePaused(db, { queue: 'default', paused: held })
      if (!held) await notify(db, { channel: Channels.runnable, payloads: ['default'] })
      await db.destroy()
    },

    async run(role, url, _work, called) {
      const connection: ConnectOptions = {
        connectionString: url,
        max: 6,
        applicationName: `bench-${role}`,
        settings: engineSessionSettings,
        role: DatabaseRoles[databaseRole(role, flush)],
      }
      const db = connect(connection)
      const hints = new HintSender({ db })
      const stop = await startRole(role, { db, connection, hints, flush, machines: machines({ history, keep, inline }, called) })
      return async () => {
        await stop()
        await hints.close()
        await db.destroy()
      }
    },
  }
}

const databaseRole = (role: string, flush: 'staged' | 'direct'): Role =>
  role === 'worker' ? (flush === 'direct' ? 'direct-scheduler' : 'scheduler') : role === 'reaper' ? 'reaper' : 'flusher'

function machines(settings: { history: 'all' | 'failures' | 'off'; keep: 'all' | 'failures'; inline: boolean }, called: Called): Machine[] {
  const run = (): null => {
    called()
    return null
  }
  return [
    job('noop', { ...settings, run }),
    job('ping', { ...settings, run }),
    machine('three', {
      ...settings,
      steps: {
        start: (ctx) => {
          called()
          return ctx.next('second')
        },
        second: (ctx) => {
          called()
          return ctx.next('third')
        },
        third: (ctx) => {
          called()
          return ctx.done()
        },
      },
    }),
  ]
}

interface Engine {
  readonly db: Db
  readonly connection: ConnectOptions
  readonly hints: HintSender
  readonly flush: 'staged' | 'direct'
  readonly machines: readonly Machine[]
}

async function startRole(role: string, { db, connection, hints, flush, machines }: Engine): Promise<() => Promise<void>> {
  if (role === 'flusher') return flushing(db, connection, hints)
  if (role === 'reaper') {
    const reaper = new Reaper({ db, connection, hints })
    reaper.start()
    return () => reaper.stop()
  }
  const scheduler = new Scheduler({ db, connection, machines, worker: 'bench', hints, flush })
  await scheduler.start()
  return () => scheduler.stop()
}

/** The loop of apps/flusher, without its shell. */
function flushing(db: Db, connection: ConnectOptions, hints: HintSender): () => Promise<void> {
  const flusher = new Flusher({ db, hints })
  const stopping = new AbortController()
  let wake = new AbortController()
  const listener = new Listener({
    connect: () => connectOne(connection),
    channels: [Channels.outcome],
    onNotification: () => wake.abort(),
  })
  listener.start()
  const loop = (async () => {
    let idleMs = 5
    while (!stopping.signal.aborted) {
      wake = new AbortController()
      const { taken } = await flusher.flush()
      idleMs = taken > 0 ? 5 : Math.min(1_000, idleMs * 2)
      if (taken > 0) continue
      const woken = await sleep(idleMs, false, { signal: AbortSignal.any([wake.signal, stopping.signal]) }).catch(() => true)
      if (woken) idleMs = 5
    }
  })()
  return async () => {
    stopping.abort()
    await loop
    await listener.stop()
  }
}

class HoldfastProducer implements Producer {
  readonly #db: Db
  readonly #hints: HintSender
  readonly #projectId: ProjectId
  readonly #under: UnderLimit | undefined

  private constructor(db: Db, projectId: ProjectId, under: UnderLimit | undefined) {
    this.#db = db
    this.#hints = new HintSender({ db })
    this.#projectId = projectId
    this.#under = under
  }
  static async open(url: string, under: UnderLimit | undefined): Promise<HoldfastProducer> {
    await using client = await open(url)
    const { rows } = await client.query<{ id: ProjectId }>("SELECT id::text FROM holdfast.project WHERE name = 'default'")
    const [project] = rows
    if (project === undefined) throw new Error('the database was not prepared')
    return new HoldfastProducer(connect({ connectionString: url, max: 4 }), project.id, under)
  }

  async insert(work: Work, count: number): Promise<void> {
    for (const piece of pieces(count, BATCH)) {
      const instances = piece.map((n) => ({ machine: MACHINE_OF[work], state: `{"n":${n}}`, ...this.#under?.fields(n) }))
      const [row] = await enqueue(this.#db, { projectId: this.#projectId, declaredOnly: false, instances })
      if (row?.inserted?.length !== piece.length)
        throw new Error(`not all were inserted: ${JSON.stringify(row?.unlimited ?? row?.unknown)}`)
    }
    await notify(this.#db, { channel: Channels.runnable, payloads: ['default'] })
  }

  /** The insert and the hint, as the api does it. */
  async insertOne(work: Work): Promise<void> {
    const [row] = await enqueue(this.#db, { projectId: this.#projectId, declaredOnly: false, instances: [{ machine: MACHINE_OF[work] }] })
    for (const queue of row?.queues ?? []) this.#hints.send(Channels.runnable, queue)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#hints.close()
    await this.#db.destroy()
  }
}

export const holdfastSystems: readonly System[] = [
  holdfast('holdfast-staged', { flush: 'staged' }, ['drain', 'steps', 'idle']),
  holdfast('holdfast-staged-no-history', { flush: 'staged', history: 'off' }, ['drain']),
  holdfast('holdfast-direct', { flush: 'direct' }, ['drain', 'steps', 'idle']),
  holdfast('holdfast-direct-no-history', { flush: 'direct', history: 'off' }, ['drain']),
  // A queue's job as the queues have it: gone when it has succeeded.
  holdfast('holdfast-direct-keep-failures', { flush: 'direct', history: 'failures', keep: 'failures' }, ['drain']),
  holdfast('holdfast-direct-inline', { flush: 'direct', inline: true }, ['steps']),
]

/** The engine by its default settings, with jobs that are enqueued under a limit. */
export const holdfastUnder = (flush: 'staged' | 'direct', limit: string, under: UnderLimit): System => ({
  ...holdfast(`holdfast-${flush} ${limit}`, { flush }, ['drain'], under),
  workerName: `holdfast-${flush}`,
})
