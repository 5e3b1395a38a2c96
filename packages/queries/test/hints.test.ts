import { setTimeout as sleep } from 'node:timers/promises'
import { Channels } from '@holdfast/contracts'
import { HintSender, Listener } from '@holdfast/queries'
import { connect, connectOne } from '@holdfast/schema'
import { countStatements, type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, expect, test } from 'vitest'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(() => database[Symbol.asyncDispose]())

test('R25: a burst of hints is a few statements, the first of them at once; another payload in the window goes with the next', async () => {
  const hints = new HintSender({ db: database.db, windowMs: 40 })
  const { names } = await countStatements(database.db, async () => {
    for (let burst = 0; burst < 5; burst += 1) {
      for (let n = 0; n < 1_000; n += 1) hints.send(Channels.runnable, n % 2 === 0 ? 'one' : 'other')
      await sleep(5)
    }
    await hints.close()
  })
  const sent = names.filter((name) => name === 'engine.notify').length
  expect(sent).toBeGreaterThan(0)
  expect(sent).toBeLessThanOrEqual(4)
})

test('R25: a hint that cannot be sent is somebody else to tell, and no failure', async () => {
  const away: unknown[] = []
  const gone = connect({ connectionString: Object.assign(new URL(database.url), { pathname: '/nowhere' }).href, max: 1, settings: {} })
  const hints = new HintSender({ db: gone, onError: (error) => away.push(error) })
  hints.send(Channels.runnable, 'one')
  await hints.close()
  await gone.destroy()
  expect(away).toHaveLength(1)
})

test('R25: a listener whose session dies hears again, and looks at everything once because it may have missed something', async () => {
  const heard: string[] = []
  let connected = 0
  let errors = 0
  const listener = new Listener({
    connect: () => connectOne({ connectionString: database.url }),
    channels: [Channels.runnable],
    onNotification: (channel, payload) => heard.push(`${channel}:${payload}`),
    onConnected: () => (connected += 1),
    onError: () => (errors += 1),
  })
  listener.start()
  await expect.poll(() => connected, { interval: 5 }).toBe(1)
  await sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`.execute(
    database.db,
  )
  await sql`SELECT pg_notify('holdfast_runnable', 'lost')`.execute(database.db)
  await expect.poll(() => connected, { interval: 5, timeout: 10_000 }).toBe(2)
  await sql`SELECT pg_notify('holdfast_runnable', 'heard')`.execute(database.db)
  await expect.poll(() => heard.at(-1), { interval: 5 }).toBe('holdfast_runnable:heard')
  expect(errors).toBeGreaterThan(0)
  await listener.stop()
})
