import { PgBoss } from 'pg-boss'
import { pieces, type System, type Work } from './system.ts'

const VERSION = '12.38.0'
// `insert` and `fetch` by thousands; a full batch is followed by the next at once instead of at the next poll.
const BATCHED = { batchSize: 1_000, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
const CHAINED = { batchSize: 500, localConcurrency: 1, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
const queueOf: Readonly<Record<Work, string>> = { noop: 'noop', steps3: 'first', ping: 'ping' }

/** Schedules and maintenance are the worker's; a client that only sends has neither. */
async function start(url: string, options: { supervise?: boolean; schedule?: boolean; useListenNotify?: boolean } = {}): Promise<PgBoss> {
  const boss = new PgBoss({ connectionString: url, ...options })
  boss.on('error', (error) => process.stderr.write(`pg-boss: ${error.message}\n`))
  await boss.start()
  return boss
}
const stop = (boss: PgBoss): Promise<void> => boss.stop({ graceful: true, close: true, timeout: 20_000 })
const CLIENT = { supervise: false, schedule: false }

export const pgBoss: System = {
  name: 'pg-boss',
  family: 'pgboss',
  settings: `${VERSION}, 1 process, batchSize 1000, localConcurrency 2, burstWhenBatchFull, insert 1000; steps are chained jobs, batchSize 500, notify on; idle: notify on (default is a poll of 2 s)`,
  trials: ['drain', 'steps', 'idle'],
  share: 1,
  background: [],
  finished: `SELECT NOT EXISTS (SELECT FROM pgboss.job WHERE state <> 'completed') AS ok`,

  async prepare(url) {
    const boss = await start(url)
    // Notifications cost the drain and are what makes the rest quick.
    await boss.createQueue('noop')
    for (const queue of ['first', 'second', 'third', 'ping']) await boss.createQueue(queue, { notify: true })
    await stop(boss)
  },

  async producer(url) {
    const boss = await start(url, CLIENT)
    return {
      async insert(work, count) {
        for (const piece of pieces(count, 1_000))
          await boss.insert(
            queueOf[work],
            piece.map((n) => ({ data: { n } })),
          )
      },
      async insertOne(work) {
        await boss.send(queueOf[work], {})
      },
      [Symbol.asyncDispose]: () => stop(boss),
    }
  },

  async run(_role, url, work, called) {
    const boss = await start(url, { useListenNotify: work !== 'noop' })
    const end = async (jobs: readonly unknown[]): Promise<void> => called(jobs.length)
    if (work === 'steps3') {
      // Not a workflow: a crash between the insert of the next jobs and the completion of these runs them again and inserts the next ones twice.
      const chain =
        (next: string) =>
        async (jobs: { data: unknown }[]): Promise<void> => {
          called(jobs.length)
          await boss.insert(
            next,
            jobs.map(({ data }) => ({ data: data as object })),
          )
        }
      await boss.work('first', CHAINED, chain('second'))
      await boss.work('second', CHAINED, chain('third'))
      await boss.work('third', CHAINED, end)
    } else if (work === 'noop') await boss.work('noop', BATCHED, end)
    else await boss.work('ping', end)
    return () => stop(boss)
  },
}
