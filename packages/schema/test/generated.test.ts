import { testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { expect, test } from 'vitest'
import { generateFrom, kept } from '../../../tools/generate.ts'

/** Servers of other majors write the same expressions in other words. */
const GENERATED_BY = 18

test('the checked-in types and schema.sql are what the migrated database gives (npm run generate)', async ({ skip }) => {
  await using database = await testDatabase()
  const { rows } = await sql<{ major: number }>`SELECT current_setting('server_version_num')::integer / 10000 AS major`.execute(database.db)
  skip(rows[0]?.major !== GENERATED_BY, `written with PostgreSQL ${GENERATED_BY}`)
  const generated = await generateFrom(database.url)
  expect(generated.map(({ file }) => ({ file, text: kept(file) }))).toEqual(generated)
})

test('what the dump cannot write, it refuses', async () => {
  await using database = await testDatabase()
  await sql`CREATE VIEW holdfast.glance AS SELECT 1 AS one`.execute(database.db)
  await expect(generateFrom(database.url)).rejects.toThrow(/relation holdfast\.glance/)
})

test('a table without a comment is refused: the tour of the tables would be silent about it', async () => {
  await using database = await testDatabase()
  await sql`CREATE TABLE holdfast.silent (id bigint)`.execute(database.db)
  await expect(generateFrom(database.url)).rejects.toThrow(/table holdfast\.silent has no comment/)
})
