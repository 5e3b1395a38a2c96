// One process of the staged engine, for measurements: `scheduler` or `flusher`, driven by messages of its parent.
import { type Channel, Channels } from '@holdfast/contracts'
import { Flusher, job, machine, Scheduler } from '@holdfast/engine'
import { HintSender, Listener } from '@holdfast/queries'
import { type ConnectOptions, connect, connectOne, engineSessionSettings } from '@holdfast/schema'

const [, , role, url = '', history = 'all'] = process.argv
const connection: ConnectOptions = {
  connectionString: url,
  max: 6,
  applicationName: `bench-${role}`,
  settings: engineSessionSettings,
  role: role === 'scheduler' ? 'holdfast_scheduler' : 'holdfast_flusher',
}
const db = connect(connection)
const hints = new HintSender({ db })
const say = (message: unknown): void => void process.send?.(message as never)
const keep = { history: history as 'all' | 'off' }

async function scheduler(): Promise<() => Promise<void>> {
  const noop = job('noop', {
    ...keep,
    run: () => null,
  })
  const ping = job('ping', { ...keep, run: () => say({ ping: performance.timeOrigin + performance.now() }) })
  const three = machine('three', {
    ...keep,
    steps: {
      start: (ctx) => ctx.next('second'),
      second: (ctx) => ctx.next('third'),
      third: (ctx) => ctx.done(),
    },
  })
  const started = new Scheduler({ db, connection, machines: [noop, ping, three], worker: 'bench', hints })
  await started.start()
  return () => started.stop()
}

function flusher(): () => Promise<void> {
  const made = new Flusher({ db, hints })
  let stopped = false
  let wake = (): void => {}
  const listener = new Listener({
    connect: () => connectOne(connection),
    channels: [Channels.outcome] satisfies Channel[],
    onNotification: () => wake(),
  })
  listener.start()
  const loop = (async () => {
    let idleMs = 5
    while (!stopped) {
      const { taken } = await made.flush()
      idleMs = taken > 0 ? 5 : Math.min(1_000, idleMs * 2)
      if (taken > 0) continue
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, idleMs)
        wake = () => {
          clearTimeout(timer)
          idleMs = 5
          resolve()
        }
      })
    }
  })()
  return async () => {
    stopped = true
    wake()
    await loop
    await listener.stop()
  }
}

const stop = role === 'scheduler' ? await scheduler() : flusher()
say({ ready: true })
process.on('message', () => {
  void stop()
    .then(() => hints.close())
    .then(() => db.destroy())
    .then(() => process.exit(0))
})
