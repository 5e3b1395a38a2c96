import { type JobHelpers, Logger, makeWorkerUtils, run } from 'graphile-worker'
import { pieces, type System, type Work } from './system.ts'

const logger = new Logger(() => () => {})
// Pinned in the catalog; the package does not export its manifest.
const VERSION = '0.18.0'
/** The best of seven settings on this kind of machine: jobs are taken a thousand at a time, completions are written together. */
const BATCHED = { concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: 1_000 }, completeJobBatchDelay: 20, failJobBatchDelay: 20 }
/** Its default takes a job as soon as it hears of it; a local queue and a batch delay would only add to that. */
const presetOf: Readonly<Record<Work, object>> = { noop: BATCHED, steps3: BATCHED, ping: {} }
const taskOf: Readonly<Record<Work, string>> = { noop: 'noop', steps3: 'first', ping: 'ping' }

export const graphileWorker: System = {
  name: 'graphile-worker',
  family: 'graphile',
  settings: `${VERSION}, 1 process, concurrency 24, localQueue 1000, completion batch 20 ms, addJobs 1000; idle: defaults; jobs are deleted; steps are chained jobs`,
  trials: ['drain', 'steps', 'idle'],
  share: 1,
  background: [],
  finished: 'SELECT NOT EXISTS (SELECT FROM graphile_worker._private_jobs) AS ok',

  async prepare(url) {
    const adding = await makeWorkerUtils({ connectionString: url, logger })
    await adding.migrate()
    await adding.release()
  },

  async producer(url) {
    const adding = await makeWorkerUtils({ connectionString: url, logger })
    return {
      async insert(work, count) {
        for (const piece of pieces(count, 1_000)) await adding.addJobs(piece.map((n) => ({ identifier: taskOf[work], payload: { n } })))
      },
      async insertOne(work) {
        await adding.addJob(taskOf[work], {})
      },
      async [Symbol.asyncDispose]() {
        await adding.release()
      },
    }
  },

  async run(_role, url, work, called) {
    // Not a workflow: a crash between the insert of the next job and the completion of this one runs both twice.
    const chain =
      (next: string) =>
      async (payload: unknown, { addJob }: JobHelpers): Promise<void> => {
        called()
        await addJob(next, payload as never)
      }
    const end = async (): Promise<void> => called()
    const taskList = { noop: end, ping: end, first: chain('second'), second: chain('third'), third: end } as never
    const runner = await run({
      connectionString: url,
      logger,
      noHandleSignals: true,
      taskList,
      preset: { worker: { connectionString: url, ...presetOf[work] } },
    })
    return () => runner.stop()
  },
}
