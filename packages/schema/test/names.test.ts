import { testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { expect, test } from 'vitest'
import { Constraints, DatabaseRoles } from '../src/index.ts'

test('each constraint that code knows by name exists, and none is an index that is not unique', async () => {
  await using database = await testDatabase()
  const { rows } = await sql<{ name: string }>`
    SELECT conname AS name FROM pg_constraint WHERE connamespace = 'holdfast'::regnamespace
    UNION
    SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indisunique AND c.relnamespace = 'holdfast'::regnamespace`.execute(database.db)
  const names = new Set(rows.map((row) => row.name))
  expect(Object.values(Constraints).filter((name) => !names.has(name))).toEqual([])
})

test('each app has its role: it logs in, is no superuser and creates nothing', async () => {
  await using database = await testDatabase()
  const { rows } = await sql<{ name: string; login: boolean; powers: boolean }>`
    SELECT rolname AS name, rolcanlogin AS login, rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls AS powers
    FROM pg_roles WHERE rolname = ANY (${Object.values(DatabaseRoles)}::text[]) ORDER BY rolname`.execute(database.db)
  expect(rows).toEqual(
    Object.values(DatabaseRoles)
      .toSorted()
      .map((name) => ({ name, login: true, powers: false })),
  )
})
