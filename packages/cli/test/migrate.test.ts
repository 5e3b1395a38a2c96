import { cpSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expectedVersion } from '@holdfast/schema'
import { testDatabase } from '@holdfast/testbed'
import { expect, test } from 'vitest'
import { holdfast, holdfastJson } from './run-holdfast.ts'

const MIGRATIONS = join(import.meta.dirname, '../../../migrations')

test('says what it would apply, applies it, and has nothing to do then', async () => {
  await using database = await testDatabase({ empty: true })
  const env = { HOLDFAST_DATABASE_URL: database.url }
  const { pending } = (await holdfastJson<{ pending: { name: string; compatibility: string }[] }>(['migrate', '--dry-run'], { env }))
    .document
  expect(pending[0]).toEqual({ name: '0001_engine.sql', compatibility: 'safe' })
  expect((await holdfastJson(['migrate', '--dry-run'], { env })).document).toEqual({ pending }) // the first has changed nothing

  const applied = await holdfast(['migrate'], { env })
  expect(applied).toMatchObject({ code: 0, stdout: `${pending.length} applied; the schema has version ${pending.length}\n` })
  expect(applied.stderr).toContain('applying 0001_engine.sql')
  expect((await holdfastJson(['migrate'], { env })).document).toEqual({ applied: [], version: pending.length })
  expect((await holdfast(['migrate', '--dry-run'], { env })).stdout).toBe('the schema is up to date\n')
})

test('refuses a past that was changed, and a file that cannot be applied, with 1', async () => {
  await using database = await testDatabase()
  const env = { HOLDFAST_DATABASE_URL: database.url }
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-migrations-'))
  cpSync(MIGRATIONS, folder, { recursive: true })
  writeFileSync(join(folder, '0001_engine.sql'), '-- safe: not what was applied\nSELECT 1;\n')
  for (const args of [['migrate'], ['migrate', '--dry-run']]) {
    const { code, document } = await holdfastJson<{ error: { code: string; message: string } }>([...args, '--migrations', folder], { env })
    expect(code).toBe(1)
    expect(document.error).toMatchObject({
      code: 'migration_refused',
      message: expect.stringMatching(/0001_engine\.sql is not what was applied/) as string,
    })
  }

  cpSync(MIGRATIONS, folder, { recursive: true })
  const next = String((await expectedVersion(MIGRATIONS)) + 1).padStart(4, '0')
  writeFileSync(join(folder, `${next}_broken.sql`), '-- safe: no\nSELECT nothing;\n')
  expect(await holdfastJson(['migrate', '--migrations', folder], { env })).toMatchObject({
    code: 1,
    document: {
      error: { code: 'migration_failed', message: expect.stringMatching(/_broken\.sql:2:8 failed and was rolled back whole/) as string },
    },
  })
  expect(await holdfastJson(['migrate', '--migrations', join(folder, 'missing')], { env })).toMatchObject({ code: 2 })
})
