// The ceiling: a claim and a completion written by hand over `pg`, with no engine around them.
import type pg from 'pg'
import { type BenchServer, counters, type Figure, open, until } from './measured.ts'

const BATCH = 500
const system = 'raw-sql'
const settings = `claim ${BATCH} and mark done in 2 statements, 2 connections, no lease, no history`

export async function drainRaw(server: BenchServer, count: number): Promise<Figure[]> {
  const url = await server.fresh('bench_raw')
  const monitor = await open(url)
  await monitor.query(`CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL DEFAULT 'default',
    state text NOT NULL DEFAULT 'ready', run_at timestamptz NOT NULL DEFAULT now(), lease timestamptz, payload jsonb NOT NULL);
    CREATE INDEX ON jobs (queue, run_at, id) WHERE state = 'ready'`)
  const enqueueStartedMs = performance.now()
  for (let from = 0; from < count; from += 1_000) {
    const payloads = Array.from({ length: Math.min(1_000, count - from) }, (_, index) => `{"n":${from + index}}`)
    await monitor.query({ name: 'insert', text: 'INSERT INTO jobs (payload) SELECT unnest($1::jsonb[])', values: [payloads] })
  }
  const enqueueMs = performance.now() - enqueueStartedMs
  await monitor.query('CHECKPOINT')
  const before = await counters(monitor)
  const clients = await Promise.all([open(url), open(url)])
  const startedMs = performance.now()
  await Promise.all(
    clients.map(async (client) => {
      for (;;) {
        const ids = await claimBatch(client)
        if (ids.length === 0) return
        await client.query({ name: 'done', text: `UPDATE jobs SET state = 'done', lease = NULL WHERE id = ANY ($1)`, values: [ids] })
      }
    }),
  )
  await until(monitor, `SELECT NOT EXISTS (SELECT FROM jobs WHERE state <> 'done') AS ok`)
  const seconds = (performance.now() - startedMs) / 1_000
  await Promise.all(clients.map((client) => client.end()))
  const after = await counters(monitor)
  await monitor.end()
  return [
    { figure: 'drain', system, value: Math.round(count / seconds), unit: 'jobs/s', settings },
    { figure: 'enqueue', system, value: Math.round(count / (enqueueMs / 1_000)), unit: 'jobs/s', settings: 'unnest of 1000' },
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

async function claimBatch(client: pg.Client): Promise<string[]> {
  const { rows } = await client.query<{ id: string }>({
    name: 'claim',
    text: `UPDATE jobs SET state = 'run', lease = now() + interval '60s' WHERE id = ANY (ARRAY(
      SELECT id FROM jobs WHERE queue = 'default' AND state = 'ready' ORDER BY queue, run_at, id LIMIT ${BATCH} FOR UPDATE SKIP LOCKED)) RETURNING id`,
  })
  return rows.map((row) => row.id)
}
