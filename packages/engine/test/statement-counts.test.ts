import { Flusher, job, machine, Scheduler } from '@holdfast/engine'
import { createProject, deliverSignalById, enqueue } from '@holdfast/queries'
import { type Db, engineSessionSettings } from '@holdfast/schema'
import { testDatabase } from '@holdfast/testbed'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import { expect, test } from 'vitest'
import { z } from 'zod'

/** Counts what is really sent, BEGIN and COMMIT included, by standing where every statement goes out. */
class CountingClient extends pg.Client {
  static sent: string[] = []
  override query(...args: unknown[]): never {
    const [query] = args
    const text = typeof query === 'string' ? query : (query as { text?: string } | undefined)?.text
    if (text !== undefined) CountingClient.sent.push(text)
    return super.query(...(args as [string])) as never
  }
}
const counted = async (work: () => Promise<unknown>): Promise<string[]> => {
  CountingClient.sent = []
  await work()
  return CountingClient.sent.map((text) => /^\/\* (\S+) \*\//.exec(text)?.[1] ?? text.toUpperCase())
}

test('statements per operation do not grow with the batch', async () => {
  await using database = await testDatabase()
  const options = Object.entries(engineSessionSettings).map(([name, value]) => `-c ${name}=${value}`)
  const pool = new pg.Pool({ connectionString: database.url, max: 2, options: options.join(' '), Client: CountingClient })
  // `end()` does not wait until its connections are closed; the drop of the database may be first, and would end the test run.
  pool.on('error', () => {})
  const db: Db = new Kysely({ dialect: new PostgresDialect({ pool }) })
  const [project] = await createProject(database.db, { name: 'default' })
  const noop = job('noop', { run: () => null })
  const waits = machine('waits', {
    signals: { go: z.object({}) },
    steps: { start: (ctx) => ctx.awaitSignal('go', 'end'), end: (ctx) => ctx.done() },
  })
  const hints = { send() {} }
  const scheduler = new Scheduler({
    db,
    connection: { connectionString: database.url },
    machines: [noop, waits],
    queues: { default: 200 },
    worker: 'w',
    hints,
  })
  const flusher = new Flusher({ db, hints })
  const insert = (machineName: string, count: number) =>
    enqueue(db, { projectId: project!.id, declaredOnly: false, instances: Array.from({ length: count }, () => ({ machine: machineName })) })

  expect(await counted(() => scheduler.runOnce())).toEqual(['engine.claim'])
  expect(await counted(() => flusher.flush())).toEqual(['engine.has_outcomes'])
  for (const size of [1, 3, 150]) {
    expect(await counted(() => insert('noop', size))).toEqual(['engine.enqueue'])
    // The bound of design/engine.md is three for a claim with rows; the third comes with children.
    expect(await counted(() => scheduler.runOnce())).toEqual(['engine.claim', 'engine.load_inbox', 'engine.stage_outcomes'])
    const transaction = ['BEGIN', 'engine.apply_outcomes', 'engine.apply_riders', 'COMMIT']
    // The first flush after an idle time asks first whether there is anything.
    expect(await counted(() => flusher.flush())).toEqual(size === 1 ? ['engine.has_outcomes', ...transaction] : transaction)
  }
  const [inserted] = await insert('waits', 1)
  await scheduler.runOnce()
  await flusher.flush()
  const id = inserted!.ids![0]!
  expect(await counted(() => deliverSignalById(db, { projectId: project!.id, id, name: 'go', payload: '{}' }))).toEqual([
    'engine.deliver_signal_by_id',
  ])
  await db.destroy()
})
