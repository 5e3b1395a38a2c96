// The ceiling: a claim and a completion written by hand over `pg`, with no engine around them.
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, open } from '../bench-server.ts'
import { pieces, type System } from './system.ts'

const BATCH = 500
const CONNECTIONS = 2

export const rawSql: System = {
  name: 'raw-sql',
  family: 'raw',
  settings: `claim ${BATCH} and mark done in 2 statements, ${CONNECTIONS} connections of 1 process, no lease, no history, enqueue by unnest of 1000`,
  trials: ['drain'],
  share: 1,
  background: [],
  finished: `SELECT NOT EXISTS (SELECT FROM jobs WHERE state <> 'done') AS ok`,

  async prepare(url) {
    await using client = await open(url)
    await client.query(`CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL DEFAULT 'default',
      state text NOT NULL DEFAULT 'ready', run_at timestamptz NOT NULL DEFAULT now(), lease timestamptz, payload jsonb NOT NULL);
      CREATE INDEX ON jobs (queue, run_at, id) WHERE state = 'ready'`)
  },

  async producer(url) {
    const client = await open(url)
    const insert = async (count: number): Promise<void> => {
      for (const piece of pieces(count, 1_000)) {
        const values = [piece.map((n) => `{"n":${n}}`)]
        await client.query({ name: 'insert', text: 'INSERT INTO jobs (payload) SELECT unnest($1::jsonb[])', values })
      }
    }
    return { insert: (_work, count) => insert(count), insertOne: () => insert(1), [Symbol.asyncDispose]: () => client.end() }
  },

  async run(_role, url, _work, called) {
    const clients = await Promise.all(Array.from({ length: CONNECTIONS }, () => open(url)))
    let stopped = false
    const loops = clients.map(async (client) => {
      while (!stopped) {
        const ids = await claimBatch(client)
        called(ids.length)
        if (ids.length === 0) await sleep(1)
        else await client.query({ name: 'done', text: `UPDATE jobs SET state = 'done', lease = NULL WHERE id = ANY ($1)`, values: [ids] })
      }
      await client.end()
    })
    return async () => {
      stopped = true
      await Promise.all(loops)
    }
  },
}

async function claimBatch(client: Client): Promise<string[]> {
  const { rows } = await client.query<{ id: string }>({
    name: 'claim',
    text: `UPDATE jobs SET state = 'run', lease = now() + interval '60s' WHERE id = ANY (ARRAY(
      SELECT id FROM jobs WHERE queue = 'default' AND state = 'ready' ORDER BY queue, run_at, id LIMIT ${BATCH} FOR UPDATE SKIP LOCKED)) RETURNING id`,
  })
  return rows.map((row) => row.id)
}
