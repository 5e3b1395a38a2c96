import { randomUUID } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import pg from 'pg'
import { describe, expect, test } from 'vitest'
import { type Db, expectedVersion, MigrationRefusedError, migrate } from '../src/index.ts'

const real = join(import.meta.dirname, '../../../migrations')

/** A folder of migrations that is removed again. */
async function folderOf(files: Readonly<Record<string, string>>) {
  const path = await mkdtemp(join(tmpdir(), 'holdfast-migrations-'))
  const write = async (more: Readonly<Record<string, string>>): Promise<void> => {
    await Promise.all(Object.entries(more).map(([name, text]) => writeFile(join(path, name), text)))
  }
  await write(files)
  return {
    path,
    write,
    remove: (name: string) => rm(join(path, name)),
    [Symbol.asyncDispose]: () => rm(path, { recursive: true }),
  }
}

const first = { '0001_first.sql': '-- safe: creates only\nCREATE TABLE holdfast.first (id bigint);\n' }
const second = { '0002_second.sql': '-- breaking: a column goes\nALTER TABLE holdfast.first ADD word text;\n' }

const book = async (db: Db): Promise<unknown[]> =>
  (
    await sql<{
      entry: string
    }>`SELECT version || ' ' || name || ' ' || compatibility AS entry FROM holdfast.schema_migration ORDER BY version`.execute(db)
  ).rows.map(({ entry }) => entry)
const tables = async (db: Db): Promise<string[]> =>
  (
    await sql<{
      name: string
    }>`SELECT relname AS name FROM pg_class WHERE relnamespace = to_regnamespace('holdfast') AND relkind = 'r' ORDER BY 1`.execute(db)
  ).rows.map(({ name }) => name)

describe('applying', () => {
  test('in order, each with its row; what was applied is not applied again', async () => {
    await using database = await testDatabase({ empty: true })
    await using folder = await folderOf({ ...first, 'schema.sql': 'the dump, which is no migration', 'README.md': '' })
    const connectionString = database.url
    expect(await migrate({ connectionString, folder: folder.path })).toEqual({ applied: ['0001_first.sql'], version: 1 })
    await folder.write(second)
    expect(await expectedVersion(folder.path)).toBe(2)
    expect(await migrate({ connectionString, folder: folder.path })).toEqual({ applied: ['0002_second.sql'], version: 2 })
    expect(await migrate({ connectionString, folder: folder.path })).toEqual({ applied: [], version: 2 })
    expect(await book(database.db)).toEqual(['1 0001_first.sql safe', '2 0002_second.sql breaking'])
  })

  test('two migrators at once: each migration is applied once, the later one waits and says so', async () => {
    await using database = await testDatabase({ empty: true })
    await using folder = await folderOf({
      '0001_slow.sql': '-- safe: creates only\nSELECT pg_sleep(0.3);\nCREATE TABLE holdfast.slow (id bigint);\n',
    })
    const said: string[] = []
    const run = () => migrate({ connectionString: database.url, folder: folder.path, onProgress: (line) => said.push(line) })
    const reports = await Promise.all([run(), run(), run()])
    expect(reports.flatMap((report) => report.applied)).toEqual(['0001_slow.sql'])
    expect(said.filter((line) => line === 'another migrator is at work; waiting for it')).toHaveLength(2)
  })

  test('several databases of one cluster at once: the roles, which they share, are in nobody’s way', async () => {
    await using stack = new AsyncDisposableStack()
    const databases = await Promise.all(Array.from({ length: 6 }, async () => stack.use(await testDatabase({ empty: true }))))
    const said: string[] = []
    const reports = await Promise.all(
      databases.map(({ url }) => migrate({ connectionString: url, folder: real, onProgress: (line) => said.push(line) })),
    )
    expect(new Set(reports.map((report) => report.version))).toEqual(new Set([await expectedVersion(real)]))
    for (const { db } of databases) expect(await tables(db)).toContain('instance')
  })

  test('a role that another database’s migration changes at this moment: the loser is rolled back and tries again', async () => {
    await using stack = new AsyncDisposableStack()
    const one = stack.use(await testDatabase({ empty: true }))
    const two = stack.use(await testDatabase({ empty: true }))
    // Of its own, because roles belong to the server that all tests share.
    const role = `race_${randomUUID().replaceAll('-', '')}`
    await sql.raw(`CREATE ROLE ${role}; ALTER ROLE ${role} SET work_mem = '5MB'`).execute(one.db)
    stack.defer(async () => void (await sql.raw(`DROP ROLE ${role}`).execute(one.db)))
    await using folder = await folderOf({
      '0001_role.sql': `-- safe: settings only\nCREATE TABLE holdfast.first (id bigint);\nALTER ROLE ${role} SET work_mem = '6MB';\n`,
    })
    const holder = new pg.Client({ connectionString: one.url })
    await holder.connect()
    stack.defer(() => holder.end())
    await holder.query('BEGIN')
    await holder.query(`ALTER ROLE ${role} SET work_mem = '7MB'`)
    const said: string[] = []
    const migration = migrate({ connectionString: two.url, folder: folder.path, onProgress: (line) => said.push(line) })
    const blocked = sql`SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
    await expect.poll(async () => (await blocked.execute(two.db)).rows.length, { interval: 10 }).toBe(1)
    await holder.query('COMMIT')
    expect((await migration).applied).toEqual(['0001_role.sql'])
    expect(said[1]).toMatch(/^0001_role\.sql met another session \(tuple concurrently updated\)/)
    expect(await tables(two.db)).toEqual(['first', 'schema_migration'])
  })

  test('a lock that is not given in time is asked for again', async () => {
    await using database = await testDatabase({ empty: true })
    await using folder = await folderOf(first)
    await migrate({ connectionString: database.url, folder: folder.path })
    await folder.write({
      '0002_second.sql': "-- safe: a column\nSET LOCAL lock_timeout = '50ms';\nALTER TABLE holdfast.first ADD word text;\n",
    })
    const holder = new pg.Client({ connectionString: database.url })
    await holder.connect()
    await holder.query('BEGIN')
    await holder.query('SELECT FROM holdfast.first')
    const released = Promise.withResolvers<void>()
    const migration = migrate({
      connectionString: database.url,
      folder: folder.path,
      onProgress: (line) => {
        if (line.includes('lock timeout')) released.resolve()
      },
    })
    await released.promise
    await holder.query('COMMIT')
    await holder.end()
    expect((await migration).applied).toEqual(['0002_second.sql'])
  })

  test('a failing statement: the whole file is rolled back, the message has its place, the next run goes on from there', async () => {
    await using database = await testDatabase({ empty: true })
    await using folder = await folderOf({
      ...first,
      '0002_second.sql':
        '-- safe: “quoted” so that characters and bytes differ\nCREATE TABLE holdfast.second (id bigint);\nALTER TABLE\n  holdfast.frist ADD word text;\n',
    })
    const connectionString = database.url
    await expect(migrate({ connectionString, folder: folder.path })).rejects.toThrow(
      'migration 0002_second.sql failed and was rolled back whole: relation "holdfast.frist" does not exist',
    )
    await folder.write({ '0002_second.sql': '-- safe: “quoted”\nCREATE TABLE holdfast.second (id bigint);\nSELEKT 1;\n' })
    await expect(migrate({ connectionString, folder: folder.path })).rejects.toThrow(
      'migration 0002_second.sql:3:1 failed and was rolled back whole: syntax error at or near "SELEKT"',
    )
    expect(await tables(database.db)).toEqual(['first', 'schema_migration'])
    expect(await book(database.db)).toEqual(['1 0001_first.sql safe'])
    await folder.write(second)
    expect((await migrate({ connectionString, folder: folder.path })).applied).toEqual(['0002_second.sql'])
  })
})

describe('refusing, with nothing changed', () => {
  const refusals: readonly {
    name: string
    applied: Readonly<Record<string, string>>
    later: Readonly<Record<string, string | null>>
    message: RegExp
  }[] = [
    { name: 'no file at all', applied: {}, later: {}, message: /holds no migrations/ },
    {
      name: 'a changed past',
      applied: first,
      later: { '0001_first.sql': `${first['0001_first.sql']}-- a word more\n`, ...second },
      message: /0001_first\.sql is not what was applied.*must never change\. Restore the file/,
    },
    {
      name: 'a renamed past',
      applied: first,
      later: { '0001_first.sql': null, '0001_other.sql': first['0001_first.sql'] },
      message: /0001_other\.sql is not what was applied as 0001_first\.sql/,
    },
    {
      name: 'a missing past',
      applied: { ...first, ...second },
      later: { '0001_first.sql': null },
      message: /migration 0001 is missing before 0002_second\.sql: restore its file/,
    },
    {
      name: 'a database that is ahead',
      applied: { ...first, ...second },
      later: { '0002_second.sql': null },
      message: /has migration 0002_second\.sql, which these files do not know.*Deploy that version/,
    },
    {
      name: 'a gap',
      applied: first,
      later: { '0003_third.sql': '-- safe: x\n' },
      message: /migration 0002 is missing before 0003_third\.sql/,
    },
    {
      name: 'one number twice',
      applied: first,
      later: { ...second, '0002_third.sql': '-- safe: x\n' },
      message: /0002_third\.sql has the number of 0002_second\.sql/,
    },
    {
      name: 'a name that would be passed over',
      applied: first,
      later: { '0002-second.sql': '-- safe: x\n' },
      message: /0002-second\.sql would never be applied/,
    },
    {
      name: 'a file without its mark',
      applied: first,
      later: { '0002_second.sql': 'ALTER TABLE holdfast.first ADD word text;\n' },
      message: /0002_second\.sql must begin with "-- safe: why" or "-- breaking: why"/,
    },
    {
      name: 'a file that ends its transaction itself',
      applied: first,
      later: { '0002_second.sql': '-- safe: x\nALTER TABLE holdfast.first ADD word text;\n  commit;\nSELECT 1/0;\n' },
      message: /0002_second\.sql has COMMIT in it/,
    },
  ]
  test.each(refusals)('$name', async ({ applied, later, message }) => {
    await using database = await testDatabase({ empty: true })
    await using folder = await folderOf(applied)
    const connectionString = database.url
    if (Object.keys(applied).length > 0) await migrate({ connectionString, folder: folder.path })
    const before = await tables(database.db)
    for (const [name, text] of Object.entries(later)) await (text === null ? folder.remove(name) : folder.write({ [name]: text }))
    const refused = await migrate({ connectionString, folder: folder.path }).catch((error: unknown) => error)
    expect(refused).toBeInstanceOf(MigrationRefusedError)
    expect((refused as Error).message).toMatch(message)
    expect(await tables(database.db)).toEqual(before)
  })

  test('turned line ends are not a changed past', async () => {
    await using database = await testDatabase({ empty: true })
    await using folder = await folderOf(first)
    await migrate({ connectionString: database.url, folder: folder.path })
    await folder.write({ '0001_first.sql': first['0001_first.sql'].replaceAll('\n', '\r\n') })
    expect((await migrate({ connectionString: database.url, folder: folder.path })).applied).toEqual([])
  })
})
