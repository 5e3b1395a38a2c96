import { connect } from '@holdfast/schema'
import { sql } from 'kysely'
import { expect, test } from 'vitest'
import { countStatements, testDatabase } from '../src/index.ts'

test('each database is migrated, of its own, and gone when it was disposed of', async () => {
  const one = await testDatabase()
  await using two = await testDatabase()
  await sql`INSERT INTO holdfast.project (name) VALUES ('one')`.execute(one.db)
  const { rows } = await sql`SELECT name FROM holdfast.project`.execute(two.db)
  expect(rows).toEqual([])
  await one[Symbol.asyncDispose]()
  const name = new URL(one.url).pathname.slice(1)
  expect((await sql`SELECT FROM pg_database WHERE datname = ${name}`.execute(two.db)).rows).toEqual([])
})

test('connectAs has the role’s grants and no more', async () => {
  await using database = await testDatabase()
  const sealer = database.connectAs('sealer')
  const { rows } = await sql<{ role: string; seqscan: string }>`
    SELECT current_user AS role, current_setting('enable_seqscan') AS seqscan`.execute(sealer)
  expect(rows).toEqual([{ role: 'holdfast_sealer', seqscan: 'off' }])
  await expect(sql`SELECT FROM holdfast.instance`.execute(sealer)).rejects.toMatchObject({ code: '42501' })
})

test('countStatements counts what is sent, BEGIN and COMMIT included, and only while it runs', async () => {
  await using database = await testDatabase()
  const api = database.connectAs('api')
  const { count, names, texts, result } = await countStatements(api, () =>
    api.transaction().execute(async (trx) => {
      await sql`/* test.one */ SELECT ${1}::integer`.execute(trx)
      await sql`SELECT 2`.execute(trx)
      return 'done'
    }),
  )
  expect({ count, names, result }).toEqual({ count: 4, names: ['BEGIN', 'test.one', 'SELECT 2', 'COMMIT'], result: 'done' })
  expect(texts[1]).toBe('/* test.one */ SELECT $1::integer')
  await sql`SELECT 3`.execute(api)
  expect(await countStatements(database.db, () => sql`SELECT 4`.execute(api))).toMatchObject({ count: 0 })
  expect(await countStatements(api, () => Promise.resolve())).toMatchObject({ count: 0 })
})

test('countStatements refuses a Db that it cannot hear', async () => {
  await using database = await testDatabase()
  await using db = connect({ connectionString: database.url })
  await expect(countStatements(db, () => Promise.resolve())).rejects.toThrow(/db of a testDatabase/)
})

test('pg_stat_statements is there', async () => {
  await using database = await testDatabase()
  const { rows } = await sql<{ there: boolean }>`SELECT count(*) > 0 AS there FROM pg_stat_statements`.execute(database.db)
  expect(rows).toEqual([{ there: true }])
})
