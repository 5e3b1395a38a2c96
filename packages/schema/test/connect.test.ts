import { testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import pg from 'pg'
import { expect, onTestFinished, test } from 'vitest'
import { type ConnectOptions, connect, connectOne, type Db, engineSessionSettings, poolStats } from '../src/index.ts'

const open = (options: ConnectOptions): Db => connect({ max: 1, ...options })
const prepared = async (db: Db): Promise<string[]> =>
  (await sql<{ name: string }>`SELECT name FROM pg_prepared_statements ORDER BY prepare_time`.execute(db)).rows.map(({ name }) => name)

test('a text with a head is prepared under its name and a hash of it; others are not', async () => {
  await using database = await testDatabase()
  await using db = open({ connectionString: database.url })
  for (const value of [1, 2]) await sql`/* test.one */ SELECT ${value}::integer`.execute(db)
  await sql`/* test.one */ SELECT ${1}::integer + 1`.execute(db)
  await sql`SELECT ${1}::integer`.execute(db)
  const names = await prepared(db)
  expect(names).toHaveLength(2)
  expect(names).toEqual([expect.stringMatching(/^test\.one\.[0-9a-f]{16}$/), expect.stringMatching(/^test\.one\.[0-9a-f]{16}$/)])
})

test('role and settings arrive with the connection, without a statement; blanks in values survive', async () => {
  await using database = await testDatabase()
  const settings = { ...engineSessionSettings, application_name: 'two words \\ and more' }
  await using db = open({ connectionString: database.url, role: 'holdfast_sealer', settings })
  const { rows } = await sql`SELECT current_user AS role, current_setting('enable_seqscan') AS seqscan,
    current_setting('plan_cache_mode') AS plan, current_setting('application_name') AS name`.execute(db)
  expect(rows).toEqual([{ role: 'holdfast_sealer', seqscan: 'off', plan: 'force_generic_plan', name: 'two words \\ and more' }])
})

test('options in the URL do not take the place of role and settings', async () => {
  await using database = await testDatabase()
  const connectionString = `${database.url}?options=${encodeURIComponent('-c work_mem=5MB -c enable_seqscan=on')}`
  await using db = open({ connectionString, role: 'holdfast_sealer', settings: { enable_seqscan: 'off' } })
  const { rows } =
    await sql`SELECT current_user AS role, current_setting('work_mem') AS memory, current_setting('enable_seqscan') AS seqscan`.execute(db)
  expect(rows).toEqual([{ role: 'holdfast_sealer', memory: '5MB', seqscan: 'off' }])
})

test('for a transaction-pooling proxy: nothing is prepared, no startup option is sent, and the role’s own settings hold', async () => {
  await using database = await testDatabase()
  const connectionString = Object.assign(new URL(database.url), { username: 'holdfast_scheduler' }).href
  await using db = open({ connectionString, preparedStatements: false, role: 'holdfast_sealer', settings: { work_mem: '5MB' } })
  await sql`/* test.one */ SELECT ${1}::integer`.execute(db)
  expect(await prepared(db)).toEqual([])
  const { rows } = await sql`SELECT current_user AS role, current_setting('work_mem') AS memory,
    current_setting('enable_seqscan') AS seqscan, current_setting('plan_cache_mode') AS plan`.execute(db)
  expect(rows).toEqual([{ role: 'holdfast_scheduler', memory: '4MB', seqscan: 'off', plan: 'force_generic_plan' }])
})

test('the roles’ own settings in the database are those that the apps send', async () => {
  await using database = await testDatabase()
  const { rows } = await sql<{ role: string; settings: string[] }>`
    SELECT setrole::regrole::text AS role, setconfig AS settings FROM pg_db_role_setting
    WHERE setdatabase = 0 AND setrole::regrole::text IN ('holdfast_scheduler', 'holdfast_direct_scheduler', 'holdfast_flusher', 'holdfast_reaper') ORDER BY 1`.execute(
    database.db,
  )
  const wanted = Object.entries(engineSessionSettings).map(([name, value]) => `${name}=${value}`)
  expect(rows.map(({ role }) => role)).toEqual(['holdfast_direct_scheduler', 'holdfast_flusher', 'holdfast_reaper', 'holdfast_scheduler'])
  for (const { settings } of rows) expect(settings.toSorted()).toEqual(wanted.toSorted())
})

test('bigint comes as string and time as Date, whatever a module sets for the whole process', async () => {
  await using database = await testDatabase()
  await using db = open({ connectionString: database.url })
  const before = [20, 1184].map((oid) => [oid, pg.types.getTypeParser(oid, 'text')] as const)
  onTestFinished(() => before.forEach(([oid, parser]) => pg.types.setTypeParser(oid, parser)))
  pg.types.setTypeParser(20, Number)
  pg.types.setTypeParser(1184, String)
  const { rows } =
    await sql`SELECT 9007199254740993::bigint AS id, ARRAY[1]::bigint[] AS ids, '2026-01-02T03:04:05Z'::timestamptz AS at`.execute(db)
  expect(rows).toEqual([{ id: '9007199254740993', ids: ['1'], at: new Date('2026-01-02T03:04:05Z') }])
})

test('an idle connection that dies is reported, and the next statement has another', async () => {
  await using database = await testDatabase()
  const died = Promise.withResolvers<Error>()
  await using db = open({ connectionString: database.url, onIdleError: died.resolve })
  const { rows } = await sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`.execute(db)
  await sql`SELECT pg_terminate_backend(${rows[0]!.pid})`.execute(database.db)
  expect((await died.promise).message).toMatch(/terminating connection/)
  await sql`SELECT 1`.execute(db)
})

test('a connection that dies under its statement rejects that statement and harms nothing else', async () => {
  await using database = await testDatabase()
  await using db = open({ connectionString: database.url, onIdleError: () => undefined })
  const { rows } = await sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`.execute(db)
  const sleeping = sql`SELECT pg_sleep(30)`.execute(db).catch((error: unknown) => error)
  await sql`SELECT pg_terminate_backend(${rows[0]!.pid})`.execute(database.db)
  expect(String(await sleeping)).toMatch(/terminating connection|Connection terminated/)
  await sql`SELECT 1`.execute(db)
})

test('poolStats counts connections and those who wait for one', async () => {
  await using database = await testDatabase()
  await using db = open({ connectionString: database.url })
  expect(poolStats(db)).toEqual({ total: 0, idle: 0, waiting: 0 })
  await db.connection().execute(async (held) => {
    await sql`SELECT 1`.execute(held)
    const waiter = sql`SELECT 1`.execute(db)
    await expect.poll(() => poolStats(db)).toEqual({ total: 1, idle: 0, waiting: 1 })
    void waiter.catch(() => undefined)
  })
  await expect.poll(() => poolStats(db)).toEqual({ total: 1, idle: 1, waiting: 0 })
  await db.transaction().execute(async (trx) => {
    expect(() => poolStats(trx)).toThrow(/connect\(\) made/)
  })
})

test('connectOne: one session with the same options, for LISTEN', async () => {
  await using database = await testDatabase()
  const client = await connectOne({ connectionString: database.url, role: 'holdfast_sealer', applicationName: 'one' })
  onTestFinished(() => client.end())
  const heard = Promise.withResolvers<string | undefined>()
  client.on('notification', ({ payload }) => heard.resolve(payload))
  await client.query('LISTEN test_channel')
  await sql`SELECT pg_notify('test_channel', 'hello')`.execute(database.db)
  expect(await heard.promise).toBe('hello')
  const { rows } = await client.query('SELECT current_user AS role, current_setting($1) AS name', ['application_name'])
  expect(rows).toEqual([{ role: 'holdfast_sealer', name: 'one' }])
})
