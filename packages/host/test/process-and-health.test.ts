import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { listProcesses } from '@holdfast/queries'
import { connect } from '@holdfast/schema'
import { testDatabase } from '@holdfast/testbed'
import { startPostgres } from '@holdfast/testbed/postgres'
import { sql } from 'kysely'
import { expect, test } from 'vitest'
import { createLogger, Health, KNOWN_SCHEMA, type Loop, ProcessRegistry, serveHealth } from '../src/index.ts'

const logger = createLogger({ role: 'test', level: 'silent' })
const fine: Loop = { name: 'work', start() {}, stop: async () => {}, isHealthy: () => null }

test('a process registers, beats, registers again when it was taken for dead, and leaves', async () => {
  await using database = await testDatabase()
  const { db } = database
  const registry = new ProcessRegistry({ db, role: 'flusher', version: '1.2.3', poolMax: 7, beatMs: 20, logger })
  registry.start()
  await expect.poll(() => registry.id, { interval: 5 }).toBeDefined()
  expect(await listProcesses(db, {})).toMatchObject([{ role: 'flusher', pid: process.pid, version: '1.2.3' }])
  await sql`UPDATE holdfast.process SET heartbeat_at = now() - interval '1 hour'`.execute(db)
  await expect.poll(async () => (await listProcesses(db, {}))[0]?.silent_ms ?? 3_600_000, { interval: 10 }).toBeLessThan(10_000)
  const first = registry.id
  await sql`DELETE FROM holdfast.process`.execute(db)
  await expect.poll(() => registry.id !== first && registry.id !== undefined, { interval: 10 }).toBe(true)
  await registry.stop()
  await registry.stop()
  expect(await listProcesses(db, {})).toEqual([])
})

test('ready tells the truth: about the schema, the loops and a stop; live is about the process alone', async () => {
  await using database = await testDatabase()
  const { db } = database
  let reason: string | null = null
  const loop: Loop = { ...fine, isHealthy: () => reason }
  const fresh = (knownSchema = KNOWN_SCHEMA): Health => new Health({ db, loops: () => [loop], knownSchema })
  expect(await fresh().ready()).toEqual({ status: 'ok', checks: { work: 'ok', database: 'ok', stopping: 'ok' } })
  expect((await fresh(KNOWN_SCHEMA + 1).ready()).checks).toMatchObject({ database: expect.stringContaining('run the migrations') })
  await sql`INSERT INTO holdfast.schema_migration (version, name, sha256, compatibility) VALUES (${KNOWN_SCHEMA + 1}::integer, 'next', '', 'safe')`.execute(
    db,
  )
  expect((await fresh().ready()).status).toBe('ok')
  await sql`UPDATE holdfast.schema_migration SET compatibility = 'breaking' WHERE name = 'next'`.execute(db)
  expect((await fresh().ready()).checks).toMatchObject({ database: expect.stringContaining('deploy the newer version') })
  await sql`DELETE FROM holdfast.schema_migration WHERE name = 'next'`.execute(db)
  reason = 'stuck'
  expect(fresh().live()).toEqual({ status: 'failing', checks: { work: 'stuck' } })
  reason = null
  const stopping = fresh()
  stopping.stopping()
  expect((await stopping.ready()).status).toBe('failing')
  expect(stopping.live().status).toBe('ok')
})

test('with the database gone a process is unready and alive, and ready again when it is back', { timeout: 60_000 }, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'holdfast-health-'))
  await chmod(folder, 0o755)
  let postgres = await startPostgres({ dataDir: join(folder, 'data'), volatile: false })
  const { port } = postgres
  const db = connect({ connectionString: postgres.url('postgres'), max: 2, onIdleError: () => {} })
  await sql`CREATE SCHEMA holdfast`.execute(db)
  await sql`CREATE TABLE holdfast.schema_migration (version integer, compatibility text)`.execute(db)
  await sql`INSERT INTO holdfast.schema_migration VALUES (${KNOWN_SCHEMA}::integer, 'safe')`.execute(db)
  const health = new Health({ db, loops: () => [fine], knownSchema: KNOWN_SCHEMA })
  const listener = await serveHealth(health, { host: '127.0.0.1', port: 0 })
  const status = async (path: string): Promise<number> => (await fetch(listener.url + path)).status
  try {
    expect([await status('/health/live'), await status('/health/ready'), await status('/metrics'), await status('/else')]).toEqual([
      200, 200, 200, 404,
    ])
    await postgres.kill()
    await expect.poll(() => status('/health/ready'), { timeout: 10_000, interval: 100 }).toBe(503)
    expect(await status('/health/live')).toBe(200)
    postgres = await startPostgres({ dataDir: join(folder, 'data'), port, volatile: false })
    await expect
      .poll(async () => (await fetch(`${listener.url}/health/ready`)).json(), { timeout: 15_000, interval: 100 })
      .toMatchObject({ status: 'ok' })
  } finally {
    await listener.close()
    await db.destroy()
    await postgres.stop()
    await rm(folder, { recursive: true, force: true })
  }
})
