import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, statSync } from 'node:fs'
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { describe, expect, onTestFinished, test } from 'vitest'
import { DataFolderInUseError, freePort, PortTakenError, type Postgres, startPostgres, type StartOptions } from '../src/postgres.ts'
import { isRunning } from '../src/postgres-leftover.ts'

/** A folder for data folders, enterable by the account that the server runs as. */
async function home(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'holdfast-home-'))
  await chmod(path, 0o755)
  onTestFinished(() => rm(path, { recursive: true, force: true }))
  return path
}

async function start(options: StartOptions): Promise<Postgres> {
  const postgres = await startPostgres(options)
  onTestFinished(() => postgres.stop())
  return postgres
}

async function ask(postgres: Postgres, text: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: postgres.url('postgres') })
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query<{ value: unknown }>(text)).rows.map(({ value }) => value)
  } finally {
    await client.end()
  }
}

async function parentWith(dataDir: string): Promise<{ parent: ChildProcess; port: number; pid: number }> {
  const parent = spawn(process.execPath, ['--conditions=@holdfast/source', fileURLToPath(import.meta.resolve('./parent.ts')), dataDir], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  onTestFinished(() => void parent.kill('SIGTERM'))
  const [line] = (await once(parent.stdout!.setEncoding('utf8'), 'data')) as [string]
  return { parent, ...(JSON.parse(line) as { port: number; pid: number }) }
}

describe('a throw-away server', () => {
  test('takes settings, counts statements, and leaves nothing behind', async () => {
    const postgres = await startPostgres({ settings: { work_mem: '7MB' } })
    const [folder] = (await ask(postgres, `SELECT current_setting('data_directory') AS value`)) as [string]
    expect(await ask(postgres, `SELECT current_setting('work_mem') AS value`)).toEqual(['7MB'])
    await ask(postgres, 'CREATE EXTENSION pg_stat_statements')
    expect(await ask(postgres, `SELECT count(*)::integer AS value FROM pg_stat_statements WHERE query LIKE '%work_mem%'`)).toEqual([0])
    expect(existsSync(folder)).toBe(true)
    await postgres.stop()
    await postgres.stop()
    expect(existsSync(folder)).toBe(false)
    expect(isRunning(postgres.pid)).toBe(false)
  })

  test.runIf(process.platform === 'linux' && process.getuid?.() === 0)('started by root runs under another account', async () => {
    const postgres = await start({})
    expect(readFileSync(`/proc/${postgres.pid}/comm`, 'utf8').trim()).toBe('postgres')
    expect(statSync(`/proc/${postgres.pid}`).uid).not.toBe(0)
  })

  test('of a killed process is stopped and removed by the next one that starts', async () => {
    const { parent, pid, port } = await parentWith('')
    const client = new pg.Client({ connectionString: `postgres://postgres@127.0.0.1:${port}/postgres` })
    await client.connect()
    const { rows } = await client.query<{ folder: string }>(`SELECT current_setting('data_directory') AS folder`)
    await client.end()
    parent.kill('SIGKILL')
    await once(parent, 'exit')
    expect(isRunning(pid)).toBe(true)
    await start({})
    expect(existsSync(rows[0]!.folder)).toBe(false)
    expect(isRunning(pid)).toBe(false)
  })
})

describe('a kept data folder', () => {
  test('has after a stop what it had, on any port', async () => {
    const dataDir = join(await home(), 'data')
    const first = await start({ dataDir, volatile: false })
    await ask(first, 'CREATE TABLE kept AS SELECT 1 AS value')
    await first.stop()
    expect(existsSync(join(dataDir, 'PG_VERSION'))).toBe(true)
    const second = await start({ dataDir, volatile: false })
    expect(await ask(second, 'SELECT value FROM kept')).toEqual([1])
  })

  test('durable: after SIGKILL of the server what was committed is there', async () => {
    const dataDir = join(await home(), 'data')
    const first = await start({ dataDir, volatile: false })
    expect(await ask(first, `SELECT current_setting('fsync') || current_setting('full_page_writes') AS value`)).toEqual(['onon'])
    await ask(first, 'CREATE TABLE kept AS SELECT 1 AS value')
    await ask(first, 'INSERT INTO kept VALUES (2)')
    await first.kill()
    const second = await start({ dataDir, volatile: false })
    expect(await ask(second, 'SELECT value FROM kept ORDER BY 1')).toEqual([1, 2])
  })

  test('after SIGKILL of the server under a statement that goes on: the start waits for its backend to notice', async () => {
    const dataDir = join(await home(), 'data')
    const first = await start({ dataDir, volatile: false })
    const client = new pg.Client({ connectionString: first.url('postgres') })
    client.on('error', () => {})
    await client.connect()
    const busy = client.query('SELECT count(*) FROM generate_series(1, 1500) a, generate_series(1, 2500) b').catch(() => undefined)
    await expect
      .poll(() => ask(first, `SELECT count(*)::integer AS value FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%1500%2500%'`))
      .toEqual([2]) // it and the one who asks
    await first.kill()
    const second = await start({ dataDir, volatile: false })
    expect(await ask(second, 'SELECT 1 AS value')).toEqual([1])
    await busy
    await client.end().catch(() => undefined)
  })

  test('a killed process leaves a server, which the next start takes over', async () => {
    const dataDir = join(await home(), 'data')
    const { parent, pid } = await parentWith(dataDir)
    parent.kill('SIGKILL')
    await once(parent, 'exit')
    expect(isRunning(pid)).toBe(true)
    const second = await start({ dataDir })
    expect(isRunning(pid)).toBe(false)
    expect(await ask(second, 'SELECT 1 AS value')).toEqual([1])
  })

  test('a server whose process still runs is not taken over', async () => {
    const dataDir = join(await home(), 'data')
    const { parent, pid } = await parentWith(dataDir)
    const refused = await startPostgres({ dataDir }).catch((error: unknown) => error)
    expect(refused).toBeInstanceOf(DataFolderInUseError)
    expect((refused as Error).message).toBe(
      `the database folder ${dataDir} is in use by process ${parent.pid}. Stop that one first, or give this one another folder with HOLDFAST_HOME.`,
    )
    expect(isRunning(pid)).toBe(true)
    parent.stdin!.end()
    await once(parent, 'exit')
    await start({ dataDir }) // the server ends with its process, or is taken over
  })

  test('a folder whose first start was killed is made anew; one with other files is left alone', async () => {
    const folder = await home()
    const dataDir = join(folder, 'data')
    await mkdir(dataDir)
    await writeFile(join(dataDir, 'PG_VERSION'), '18\n')
    await writeFile(`${dataDir}.initializing`, '0')
    const postgres = await start({ dataDir })
    expect(await ask(postgres, 'SELECT 1 AS value')).toEqual([1])
    expect(existsSync(`${dataDir}.initializing`)).toBe(false)

    const other = join(folder, 'other')
    await mkdir(other)
    await writeFile(join(other, 'letter.txt'), 'dear')
    await expect(startPostgres({ dataDir: other })).rejects.toThrow(`${other} holds files that are not a database`)
    expect(readFileSync(join(other, 'letter.txt'), 'utf8')).toBe('dear')
  })

  test.runIf(process.getuid?.() === 0)('in a folder that only root may enter it is refused with what to do', async () => {
    const folder = await home()
    await chmod(folder, 0o700)
    await expect(startPostgres({ dataDir: join(folder, 'data') })).rejects.toThrow(/only root may enter.*chmod o\+x/)
  })
})

test('a taken port is told in one sentence with the port and what to do', async () => {
  const server = createServer().listen(0, '127.0.0.1')
  onTestFinished(() => void server.close())
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  const refused = await startPostgres({ port }).catch((error: unknown) => error)
  expect(refused).toBeInstanceOf(PortTakenError)
  expect((refused as PortTakenError).port).toBe(port)
  expect((refused as Error).message).toBe(
    `port ${port} for PostgreSQL is taken: another server listens there. Stop it, or choose another port with HOLDFAST_PG_PORT (0 for any free one).`,
  )
})

test('a given port is the port', async () => {
  const port = await freePort()
  expect((await start({ port })).url('x')).toBe(`postgres://postgres@127.0.0.1:${port}/x`)
})
