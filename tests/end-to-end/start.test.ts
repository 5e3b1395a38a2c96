import { execFile } from 'node:child_process'
import { createServer } from 'node:net'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { HoldfastClient } from '@holdfast/client'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { blocksOf } from './doc-commands.ts'
import { alive, remove, ROOT, RunningSystem } from './running-system.ts'

const run = promisify(execFile)
const PAGES = [
  'README.md',
  ...readdirSync(join(ROOT, 'docs'), { recursive: true }).flatMap((file) => (String(file).endsWith('.md') ? [`docs/${String(file)}`] : [])),
]
const commands = PAGES.flatMap((page) => blocksOf(page, 'sh'))

describe('npm start', () => {
  let home: string
  let system: RunningSystem
  beforeAll(async () => {
    home = await RunningSystem.home()
    system = await RunningSystem.start(home)
  }, 120_000)
  afterAll(async () => {
    await system.stop('SIGTERM')
    await remove(home)
  }, 60_000)

  test('prints addresses, the token and a curl line that works as it stands', async () => {
    const { apiUrl, manageUrl, token, databaseUrl } = system.dev
    for (const shown of [apiUrl, manageUrl, token, databaseUrl]) expect(system.output).toContain(shown)
    const [, line] = /Try it:\n\s*(curl .*)\n/.exec(system.output) ?? []
    const { stdout } = await run('bash', ['-c', line ?? 'false'])
    const { id, created } = JSON.parse(stdout) as { id: string; created: boolean }
    expect(created).toBe(true)
    const client = new HoldfastClient({ url: apiUrl, token })
    expect(await client.waitFor(id, { timeoutMs: 10_000 })).toMatchObject({ to: 'ada@example.com' })
  })

  test('dev.json names six processes that live, and each answers for itself', async () => {
    expect(Object.keys(system.dev.pids).sort()).toEqual(['api', 'flusher', 'formation-worker', 'reaper', 'scheduler', 'sealer'])
    for (const pid of Object.values(system.dev.pids)) expect(alive(pid)).toBe(true)
    for (const url of Object.values(system.dev.health)) {
      expect((await fetch(`${url}/health/live`)).status).toBe(200)
      expect(await (await fetch(`${url}/health/ready`)).json()).toMatchObject({ status: 'ok', checks: { database: 'ok' } })
      expect((await fetch(`${url}/metrics`)).status).toBe(200)
    }
    const answer = await fetch(`${system.dev.manageUrl}/manage/v1/processes`, {
      headers: { authorization: `Bearer ${system.dev.operatorToken}` },
    })
    const { processes } = (await answer.json()) as { processes: { role: string; pid: number }[] }
    expect(Object.fromEntries(processes.map(({ role, pid }) => [role, pid]))).toEqual(system.dev.pids)
  })

  test.for(commands.filter(({ text }) => text !== 'npm start'))('$page: $text', async ({ text, prints, needs }, { skip }) => {
    if (needs !== undefined)
      skip(!(await run('which', [needs]).then(Boolean, () => false)), `needs ${needs}, which this machine does not have`)
    expect(prints.length).toBeGreaterThan(0)
    const command = text
      .replaceAll('http://127.0.0.1:7400', system.dev.apiUrl)
      .replaceAll('.holdfast/dev.json', join(home, 'dev.json'))
      .replace('npm run demo', `npm run --silent demo -- --instances 40 --dev ${join(home, 'dev.json')}`)
      .replaceAll('order.json', join(home, 'order.json'))
    // The command line finds the system by its home, as it finds .holdfast where that is the home.
    const env = { ...process.env, HOLDFAST_HOME: home }
    const { stdout } = await run('bash', ['-euo', 'pipefail', '-c', command], { cwd: ROOT, timeout: 60_000, env })
    for (const pattern of prints) expect(stdout).toMatch(pattern)
  })

  test('an idle system sends at most two statements a second from each process', async () => {
    const client = new pg.Client({ connectionString: system.dev.databaseUrl })
    await client.connect()
    try {
      await client.query('CREATE EXTENSION IF NOT EXISTS pg_stat_statements')
      await sleep(3_000) // what the tests before have set in motion comes to rest
      await client.query('SELECT pg_stat_statements_reset()')
      const seconds = 10
      await sleep(seconds * 1_000)
      const { rows } = await client.query<{ role: string; calls: string }>(`
        SELECT r.rolname AS role, sum(s.calls) AS calls FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid
        WHERE r.rolname LIKE 'holdfast%' GROUP BY 1 ORDER BY 1`)
      const perSecond = Object.fromEntries(rows.map((row) => [row.role, Number(row.calls) / seconds]))
      process.stdout.write(`idle statements per second: ${JSON.stringify(perSecond)}\n`)
      expect(Object.keys(perSecond).length).toBeGreaterThanOrEqual(3)
      for (const rate of Object.values(perSecond)) expect(rate).toBeLessThanOrEqual(2)
    } finally {
      await client.end()
    }
  })

  test('a role that is killed is named, the others go on; Ctrl-C stops everything, and the next start finds what was there', async () => {
    const { pids, postgresPid, token } = system.dev
    const client = new HoldfastClient({ url: system.dev.apiUrl, token })
    const { id } = await client.enqueue('checkout', { order: 99 })
    await expect.poll(async () => (await client.get(id)).status, { timeout: 10_000 }).toBe('awaiting_signal')
    process.kill(pids['sealer'] ?? -1, 'SIGKILL')
    await expect.poll(() => system.output.includes('ended by itself'), { timeout: 10_000 }).toBe(true)
    await system.stop('SIGINT')
    // npm ends by the signal itself; what it had started ends in its own time.
    await expect.poll(() => [...Object.values(pids), postgresPid].filter(alive), { timeout: 30_000 }).toEqual([])
    expect(system.output).not.toMatch(/error:|fatal:/)

    system = await RunningSystem.start(home)
    expect(system.dev.token).toBe(token)
    const again = new HoldfastClient({ url: system.dev.apiUrl, token })
    await again.signal({ id }, 'payment_confirmed', { amount: 5 })
    expect(await again.waitFor(id, { timeoutMs: 10_000 })).toEqual({ order: 99, paid: 5 })
  }, 120_000)

  test('after a SIGKILL of everything the next start recovers and goes on', async () => {
    const { pids, postgresPid, token } = system.dev
    const client = new HoldfastClient({ url: system.dev.apiUrl, token })
    const { id } = await client.enqueue('checkout', { order: 100 })
    for (const pid of [system.child.pid ?? -1, ...Object.values(pids), postgresPid]) process.kill(pid, 'SIGKILL')
    await system.ended()
    await expect.poll(() => Object.values(pids).some(alive), { timeout: 10_000 }).toBe(false)
    await remove(join(home, 'dev.json'))
    system = await RunningSystem.start(home)
    const again = new HoldfastClient({ url: system.dev.apiUrl, token })
    await again.signal({ id }, 'payment_confirmed', { amount: 6 })
    // If it had been claimed when everything died, its lease has to run out first.
    expect(await again.waitFor(id, { timeoutMs: 90_000 })).toEqual({ order: 100, paid: 6 })
  }, 180_000)
})

describe('npm start, refused', () => {
  test.each(['HOLDFAST_API_PORT', 'HOLDFAST_MANAGE_PORT', 'HOLDFAST_PG_PORT'])(
    'a taken port for %s is a clear message, not a stack',
    async (variable) => {
      const server = createServer().listen(0, '127.0.0.1')
      await once(server, 'listening')
      const { port } = server.address() as { port: number }
      const home = await RunningSystem.home()
      try {
        const system = RunningSystem.spawn(home, { [variable]: String(port) })
        expect(await system.ended()).toBe(1)
        expect(system.output).toMatch(new RegExp(`port ${port} for .* is taken.*${variable}`, 's'))
        expect(system.output).not.toMatch(/^\s+at /m)
      } finally {
        server.close()
        await remove(home)
      }
    },
  )
})
