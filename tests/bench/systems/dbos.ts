import { DBOS, DBOSClient } from '@dbos-inc/dbos-sdk'
import { open } from '../bench-server.ts'
import { type Called, pieces, type System, type Work } from './system.ts'

const VERSION = '5.3.0'
const APP = { name: 'bench', version: 'v1' }
const QUEUE = 'bench'
/** The best of five: unlimited concurrency with the default poll of 1 s is as fast at times and half as fast at others. */
const TUNED = { workerConcurrency: 500, minPollingIntervalMs: 20 }
const POOL = 20
const IN_TRANSACTION = 500

const error = (...words: unknown[]): void => void process.stderr.write(`dbos: ${words.join(' ')}\n`)
const logger = { debug() {}, info() {}, warn() {}, error }

const client = (url: string): Promise<DBOSClient> =>
  DBOSClient.create({ systemDatabaseUrl: url, applicationName: APP.name, systemDatabasePoolSize: POOL, logger })

export const dbos: System = {
  name: 'dbos',
  family: 'dbos',
  settings: `${VERSION}, 1 process, queue with workerConcurrency 500 and poll 20 ms (default: poll 1 s), pool ${POOL}, enqueueInTransaction ${IN_TRANSACTION} on 2 connections`,
  trials: ['drain', 'steps', 'idle'],
  share: 0.25,
  background: [],
  finished: `SELECT NOT EXISTS (SELECT FROM dbos.workflow_status WHERE status <> 'SUCCESS') AS ok`,

  async prepare(url) {
    await DBOS.migrate(url)
    const registering = await client(url)
    await registering.registerQueue(QUEUE, TUNED)
    await registering.destroy()
  },

  async producer(url) {
    const enqueueing = await client(url)
    const options = (work: Work) => ({ queueName: QUEUE, workflowName: work, appVersion: APP.version })
    return {
      async insert(work, count) {
        // It has no call for many; a transaction around some hundreds saves their commits, and a second connection uses the other core.
        const waiting = pieces(count, IN_TRANSACTION)
        const insertPieces = async (): Promise<void> => {
          await using connection = await open(url)
          for (const piece of waiting) {
            await connection.query('BEGIN')
            for (const n of piece) await enqueueing.enqueueInTransaction(connection, options(work), n)
            await connection.query('COMMIT')
          }
        }
        await Promise.all([insertPieces(), insertPieces()])
      },
      async insertOne(work) {
        await enqueueing.enqueue(options(work), 0)
      },
      [Symbol.asyncDispose]: () => enqueueing.destroy(),
    }
  },

  async run(_role, url, _work, called) {
    current = called
    register()
    DBOS.setConfig({ name: APP.name, systemDatabaseUrl: url, systemDatabasePoolSize: POOL, applicationVersion: APP.version, logger })
    // It tells of its migrations on stdout, where our JSON goes.
    const { log } = console
    console.log = console.error
    try {
      await DBOS.launch()
    } finally {
      console.log = log
    }
    return () => DBOS.shutdown()
  },
}

// Its workflows are the process's and not a worker's: they are registered once, and call whoever works now.
let current: Called = () => {}
let registered = false
function register(): void {
  if (registered) return
  registered = true
  for (const name of ['noop', 'ping'] satisfies Work[]) {
    DBOS.registerWorkflow(
      async (n: number) => {
        current()
        return n
      },
      { name },
    )
  }
  DBOS.registerWorkflow(
    async (n: number) => {
      for (const step of ['first', 'second', 'third']) {
        await DBOS.runStep(
          async () => {
            current()
            return n
          },
          { name: step },
        )
      }
    },
    { name: 'steps3' satisfies Work },
  )
}
