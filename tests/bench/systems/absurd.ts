import { readFileSync } from 'node:fs'
import { Absurd } from 'absurd-sdk'
import pg from 'pg'
import { open } from '../bench-server.ts'
import { pieces, type System, type Work } from './system.ts'

const VERSION = '0.5.0'
const QUEUE = 'bench'
const POOL = 20
/** The best of five for jobs, the best of two for steps. */
const concurrencyOf: Readonly<Record<Work, number>> = { noop: 500, steps3: 200, ping: 1 }

const error = (...words: unknown[]): void => void process.stderr.write(`absurd: ${words.join(' ')}\n`)
const log = { log() {}, info() {}, warn() {}, error }

/** `schemaFile`: the SQL that comes with its command-line tool and not with its SDK. */
export const absurdWith = (schemaFile: string): System => ({
  name: 'absurd',
  family: 'absurd',
  settings: `SDK ${VERSION}, 1 process, concurrency 500 (steps 200), pool ${POOL}, poll 20 ms (default 0.25 s), spawn_task() over unnest of 1000`,
  trials: ['drain', 'steps', 'idle'],
  share: 0.25,
  background: [],
  finished: `SELECT NOT EXISTS (SELECT FROM absurd.t_${QUEUE} WHERE state <> 'completed') AS ok`,

  async prepare(url) {
    await using client = await open(url)
    await client.query(readFileSync(schemaFile, 'utf8'))
    const absurd = new Absurd({ db: url, log })
    await absurd.createQueue(QUEUE)
    await absurd.close()
  },

  async producer(url) {
    const client = await open(url)
    const absurd = new Absurd({ db: url, queueName: QUEUE, log })
    return {
      async insert(work, count) {
        for (const piece of pieces(count, 1_000)) {
          await client.query(`SELECT count(s.task_id) FROM unnest($1::jsonb[]) p, absurd.spawn_task('${QUEUE}', $2, p, '{}'::jsonb) s`, [
            piece.map((n) => `{"n":${n}}`),
            work,
          ])
        }
      },
      async insertOne(work) {
        await absurd.spawn(work, {}, { queue: QUEUE })
      },
      async [Symbol.asyncDispose]() {
        await absurd.close()
        await client.end()
      },
    }
  },

  async run(_role, url, work, called) {
    const pool = new pg.Pool({ connectionString: url, max: POOL })
    const absurd = new Absurd({ db: pool, queueName: QUEUE, log })
    const once = async (): Promise<void> => called()
    absurd.registerTask({ name: 'noop' satisfies Work }, once)
    absurd.registerTask({ name: 'ping' satisfies Work }, once)
    absurd.registerTask({ name: 'steps3' satisfies Work }, async (_input: unknown, ctx) => {
      for (const step of ['first', 'second', 'third']) {
        await ctx.step(step, async () => {
          called()
          return { step }
        })
      }
    })
    await absurd.startWorker({ concurrency: concurrencyOf[work], pollInterval: 0.02 })
    return async () => {
      await absurd.close()
      await pool.end()
    }
  },
})
