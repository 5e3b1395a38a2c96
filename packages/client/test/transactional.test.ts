import { createRequire } from 'node:module'
import { HoldfastError, NotStorableError, type SqlConnection, TransactionalClient } from '@holdfast/client'
import type { ProjectId } from '@holdfast/contracts'
import { createProject, enqueue as enqueueStatement } from '@holdfast/queries'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { CamelCasePlugin, Kysely, PostgresDialect, sql } from 'kysely'
import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'

// The driver is the developer's, not a dependency of the client: taken from where the test databases have it.
const driver = createRequire(createRequire(import.meta.url).resolve('@holdfast/testbed'))('pg') as typeof pg

interface Shop {
  orders: { id: number; note_text: string }
}

let database: TestDatabase
let projectId: ProjectId
/** As the developer's application connects: a role of its own that is a member of holdfast_enqueue and of nothing else. */
let pool: pg.Pool
let kysely: Kysely<Shop>
let camel: Kysely<Shop>

beforeAll(async () => {
  database = await testDatabase()
  const [project] = await createProject(database.db, { name: 'shop' })
  projectId = project?.id ?? ('' as ProjectId)
  await sql
    .raw(`DO $$ BEGIN CREATE ROLE client_test_shop LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
      GRANT holdfast_enqueue TO client_test_shop;
      CREATE TABLE public.orders (id integer PRIMARY KEY, note_text text NOT NULL DEFAULT '');
      GRANT SELECT, INSERT ON public.orders TO client_test_shop`)
    .execute(database.db)
  pool = new driver.Pool({ connectionString: database.url, max: 4, options: '-c role=client_test_shop' })
  kysely = new Kysely<Shop>({ dialect: new PostgresDialect({ pool }) })
  camel = kysely.withPlugin(new CamelCasePlugin())
})
afterAll(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})
beforeEach(async () => {
  await sql`DELETE FROM holdfast.signal; DELETE FROM holdfast.signal_receipt; DELETE FROM holdfast.instance`.execute(database.db)
  await sql`DELETE FROM public.orders`.execute(database.db)
})

const holdfast = new TransactionalClient({ project: 'shop' })

async function stored(): Promise<{ orders: number[]; keys: (string | null)[]; signals: string[] }> {
  const { rows } = await sql<{ orders: number[]; keys: (string | null)[]; signals: string[] }>`SELECT
    ARRAY(SELECT id FROM public.orders ORDER BY id) AS orders,
    ARRAY(SELECT correlation_key FROM holdfast.instance ORDER BY id) AS keys,
    ARRAY(SELECT name FROM holdfast.signal ORDER BY id) AS signals`.execute(database.db)
  return rows[0] ?? { orders: [], keys: [], signals: [] }
}

async function withClient<Result>(work: (client: pg.PoolClient) => Promise<Result>): Promise<Result> {
  const client = await pool.connect()
  try {
    return await work(client)
  } finally {
    client.release()
  }
}

/** The same business with each kind of connection: an order and its checkout, in one transaction that ends as told. */
type Business = (end: 'commit' | 'rollback') => Promise<{ id: string; created: boolean }>
class Undo extends Error {}
const ways: Record<string, Business> = {
  'a pg client': (end) =>
    withClient(async (client) => {
      await client.query('BEGIN')
      await client.query('INSERT INTO orders (id) VALUES ($1)', [7])
      const answer = await holdfast.enqueue(client, 'checkout', { order: 7 }, { correlationKey: 'order-7' })
      await holdfast.signal(client, { correlationKey: 'order-7' }, 'created', { by: 'test' })
      await client.query(end)
      return answer
    }),
  'a Kysely transaction': (end) => inKysely(kysely, end),
  'a Kysely transaction with plugins': (end) => inKysely(camel, end),
  'any driver through one function': (end) =>
    withClient(async (client) => {
      const connection: SqlConnection = {
        query: async (text, values) => ({ rows: (await client.query(text, [...values])).rows as unknown[] }),
      }
      await client.query('BEGIN')
      await client.query('INSERT INTO orders (id) VALUES ($1)', [7])
      const answer = await holdfast.enqueue(connection, { name: 'checkout', version: 1 }, { order: 7 }, { correlationKey: 'order-7' })
      await holdfast.signal(connection, { id: answer.id }, 'created')
      await client.query(end)
      return answer
    }),
}
async function inKysely(db: Kysely<Shop>, end: 'commit' | 'rollback'): Promise<{ id: string; created: boolean }> {
  let answer: { id: string; created: boolean } | undefined
  await db
    .transaction()
    .execute(async (trx) => {
      await sql`INSERT INTO orders (id) VALUES (7)`.execute(trx)
      answer = await holdfast.enqueue(trx, 'checkout', { order: 7 }, { correlationKey: 'order-7' })
      await holdfast.signal(trx, { correlationKey: 'order-7' }, 'created')
      if (end === 'rollback') throw new Undo()
    })
    .catch((error: unknown) => {
      if (!(error instanceof Undo)) throw error
    })
  return answer ?? { id: '', created: false }
}

describe.each(Object.keys(ways))('with %s', (way) => {
  const business = ways[way] as Business
  test('a commit leaves the order and its job, whole', async () => {
    const { id, created } = await business('commit')
    expect(created).toBe(true)
    expect(await stored()).toEqual({ orders: [7], keys: ['order-7'], signals: ['created'] })
    const { rows } =
      await sql`SELECT project_id, machine, version, state, status, queue FROM holdfast.instance WHERE id = ${id}::bigint`.execute(
        database.db,
      )
    expect(rows).toEqual([
      { project_id: projectId, machine: 'checkout', version: 1, state: { order: 7 }, status: 'runnable', queue: 'default' },
    ])
  })
  test('a rollback leaves nothing', async () => {
    const { created } = await business('rollback')
    expect(created).toBe(true)
    expect(await stored()).toEqual({ orders: [], keys: [], signals: [] })
  })
  test('nobody sees the job before the commit', async () => {
    // A second transaction with the same key waits for the first one's end and then finds its job.
    const first = await withClient(async (client) => {
      await client.query('BEGIN')
      const answer = await holdfast.enqueue(client, 'checkout', {}, { correlationKey: 'order-7' })
      const second = business('commit')
      await untilBlocked()
      expect(await stored()).toEqual({ orders: [], keys: [], signals: [] })
      await client.query('COMMIT')
      return { answer, second: await second }
    })
    expect(first.second).toEqual({ id: first.answer.id, created: false })
    expect(await stored()).toEqual({ orders: [7], keys: ['order-7'], signals: ['created'] })
  })
})

/** Resolves as soon as a session waits for another one's lock. */
async function untilBlocked(): Promise<void> {
  await expect
    .poll(
      async () =>
        (await sql`SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`.execute(database.db)).rows
          .length,
    )
    .toBe(1)
}

test('schedulers are told at the commit and not before, once for a queue in 10 ms; a rollback tells nobody', async () => {
  const heard: string[] = []
  const listener = new driver.Client({ connectionString: database.url })
  await listener.connect()
  listener.on('notification', ({ channel, payload }) => heard.push(`${channel}:${payload}`))
  await listener.query('LISTEN holdfast_runnable')
  // What has been notified before this round trip has been heard after it.
  const sync = () => listener.query('SELECT 1')
  await withClient(async (client) => {
    await client.query('BEGIN')
    for (let n = 0; n < 3; n += 1) await holdfast.enqueue(client, 'm', {}, { queue: 'told' })
    await sync()
    expect(heard).toEqual([])
    await client.query('COMMIT')
    await sync()
    expect(heard).toEqual(['holdfast_runnable:told'])
    await client.query('BEGIN')
    await holdfast.enqueue(client, 'm', {}, { queue: 'undone' })
    await client.query('ROLLBACK')
    await holdfast.enqueue(client, 'm', {}, { queue: 'later', delay: '1 day' }) // nothing to run now
    await sync()
    expect(heard).toEqual(['holdfast_runnable:told'])
  })
  await listener.end()
})

test('many enqueues into one queue send a hint every 10 ms at most', async () => {
  const texts: string[] = []
  await withClient(async (client) => {
    const connection: SqlConnection = {
      query: async (text, values) => {
        texts.push(text)
        return { rows: (await client.query(text, [...values])).rows as unknown[] }
      },
    }
    await client.query('BEGIN')
    const begun = performance.now()
    for (let n = 0; n < 50; n += 1) await holdfast.enqueue(connection, 'm', {}, { queue: 'busy' })
    const most = Math.floor((performance.now() - begun) / 10) + 1
    await client.query('ROLLBACK')
    const hints = texts.filter((text) => text.startsWith('/* engine.notify */')).length
    expect(hints).toBeGreaterThan(0)
    expect(hints).toBeLessThanOrEqual(most)
  })
})

test('enqueueMany: ids in order, duplicates answer their occupants', async () => {
  await withClient(async (client) => {
    await client.query('BEGIN')
    const one = await holdfast.enqueue(client, 'm', { n: 0 }, { correlationKey: 'k' })
    const { ids, created } = await holdfast.enqueueMany(client, [
      { machine: 'm', state: { n: 1 } },
      { machine: 'm', state: { n: 2 }, correlationKey: 'k' },
      { machine: 'm', state: null, queue: 'q', priority: -1, concurrencyKey: 'c', eligibleAt: new Date('2999-01-01T00:00:00Z') },
    ])
    expect(created).toEqual([true, false, true])
    expect(ids[1]).toBe(one.id)
    expect(await holdfast.enqueueMany(client, [])).toEqual({ ids: [], created: [] })
    await client.query('COMMIT')
    const { rows } =
      await sql`SELECT state, queue, priority, concurrency_key, status FROM holdfast.instance WHERE id = ${ids[2] ?? ''}::bigint`.execute(
        database.db,
      )
    expect(rows).toEqual([{ state: null, queue: 'q', priority: -1, concurrency_key: 'c', status: 'scheduled' }])
  })
})

test("a developer's type parsers change nothing: ids are strings", async () => {
  const client = new driver.Client({
    connectionString: database.url,
    types: { getTypeParser: (oid: number) => (oid === 20 ? Number : driver.types.getTypeParser(oid, 'text')) } as pg.CustomTypesConfig,
  })
  await client.connect()
  await client.query('BEGIN')
  const first = await holdfast.enqueue(client, 'm', {}, { correlationKey: 'typed' })
  expect(await new TransactionalClient({ project: 'shop' }).enqueue(client, 'm', {}, { correlationKey: 'typed' })).toEqual({
    id: first.id,
    created: false,
  })
  expect(typeof first.id).toBe('string')
  expect(await holdfast.signal(client, { id: first.id }, 'go', {}, { dedupKey: 'd' })).toEqual({ duplicate: false })
  expect(await holdfast.signal(client, { id: first.id }, 'go', {}, { dedupKey: 'd' })).toEqual({ duplicate: true })
  await client.query('COMMIT')
  await client.end()
})

test('what cannot be stored is refused before anything is sent, and the transaction goes on', async () => {
  await withClient(async (client) => {
    await client.query('BEGIN')
    await client.query('INSERT INTO orders (id) VALUES (1)')
    const { id } = await holdfast.enqueue(client, 'm', {}, { correlationKey: 'survives' })
    const refused = async (code: string, work: () => Promise<unknown>): Promise<void> => {
      const error = await work().catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(HoldfastError)
      expect(error).toMatchObject({ code })
    }
    await refused('invalid_instance', () => holdfast.enqueue(client, ''))
    await refused('invalid_instance', () => holdfast.enqueue(client, 'm', {}, { priority: 40_000 }))
    await refused('invalid_instance', () => holdfast.enqueue(client, 'm', {}, { delay: 5, eligibleAt: new Date() }))
    await refused('invalid_instance', () => holdfast.enqueue(client, 'm', {}, { correlationKey: 'x'.repeat(501) }))
    await refused('invalid_signal', () => holdfast.signal(client, { id: 'abc' }, 'go'))
    await refused('invalid_signal', () => holdfast.signal(client, { id }, ''))
    await refused('not_found', () => holdfast.signal(client, { id: '999999' }, 'go'))
    await refused('not_found', () => holdfast.signal(client, { correlationKey: 'nobody' }, 'go'))
    await refused('not_found', () => new TransactionalClient({ project: 'nobody' }).enqueue(client, 'm'))
    await expect(holdfast.enqueue(client, 'm', { a: '\0' })).rejects.toThrow(NotStorableError)
    await expect(holdfast.enqueue(client, 'm', 'x'.repeat(600_000))).rejects.toThrow(/600002 bytes/)
    await expect(holdfast.signal(client, { id }, 'go', { n: 1n })).rejects.toThrow(NotStorableError)
    await client.query('COMMIT')
  })
  expect(await stored()).toEqual({ orders: [1], keys: ['survives'], signals: [] })
})

test('what is no transaction is refused: each statement would commit by itself', async () => {
  await expect(holdfast.enqueue(kysely, 'm')).rejects.toThrow(/not a transaction/)
  await expect(holdfast.enqueue(pool as unknown as SqlConnection, 'm')).rejects.toThrow(/this is a pool/)
  expect((await stored()).keys).toEqual([])
})

test('statements are not named on a connection that may sit behind a proxy', async () => {
  await withClient(async (client) => {
    await client.query('BEGIN')
    await holdfast.enqueue(client, 'm')
    expect((await client.query(`SELECT name FROM pg_prepared_statements`)).rows).toEqual([])
    await client.query('ROLLBACK')
  })
})

test('the statement that is sent is the one of the api', async () => {
  const texts: string[] = []
  await withClient(async (client) => {
    const connection: SqlConnection = {
      query: async (text, values) => {
        texts.push(text)
        return { rows: (await client.query(text, [...values])).rows as unknown[] }
      },
    }
    await client.query('BEGIN')
    await new TransactionalClient({ project: 'shop' }).enqueue(connection, 'm', {}, { delay: '1 hour' })
    await client.query('ROLLBACK')
  })
  const { sql: text } = enqueueStatement.compile({ projectId, declaredOnly: false, instances: [{ machine: 'm' }] })
  expect(texts).toEqual([expect.stringContaining('/* tenants.find_project */'), text])
})
