// Test engines as a user has them: from a folder that knows nothing of this repository, with no runner but Node's, and with a server of their own.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { testEngine } from '@holdfast/testing'
import { job } from '@holdfast/engine'
import { afterEach, expect, test } from 'vitest'

const packages = join(import.meta.dirname, '../..')
const folders: string[] = []
const children: ChildProcess[] = []
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL')
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true })
})

/** A project of somebody else that has installed us. */
function project(files: Readonly<Record<string, string>>): string {
  const root = mkdtempSync(join(tmpdir(), 'holdfast-user-'))
  folders.push(root)
  mkdirSync(join(root, 'node_modules/@holdfast'), { recursive: true })
  for (const name of ['testing', 'engine']) symlinkSync(join(packages, name), join(root, 'node_modules/@holdfast', name), 'dir')
  for (const [file, text] of Object.entries({ 'package.json': '{ "type": "module" }', ...files })) writeFileSync(join(root, file), text)
  return root
}

function run(root: string, ...args: string[]): ChildProcess {
  const { HOLDFAST_TEST_DATABASE_URL: _given, NODE_OPTIONS: _options, NODE_TEST_CONTEXT: _context, ...env } = process.env
  const child = spawn(process.execPath, ['--conditions=@holdfast/source', ...args], { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] })
  children.push(child)
  return child
}

async function outputOf(child: ChildProcess): Promise<{ code: number | null; output: string }> {
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream?.setEncoding('utf8').on('data', (text: string) => (output += text))
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, output }
}

/** Until the server of this folder has ended and taken its files with it. */
async function removed(folder: string): Promise<boolean> {
  for (let waitedMs = 0; waitedMs < 30_000; waitedMs += 100) {
    if (!existsSync(folder)) return true
    await sleep(100)
  }
  return false
}

const greet = `
import { job } from '@holdfast/engine'
export const greet = job('greet', { run: (input, ctx) => ({ hello: input.name, attempt: ctx.attempt }) })
`
const testFile = (name: string): string => `
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { writeFileSync } from 'node:fs'
import { testEngine } from '@holdfast/testing'
import { greet } from './greet.mjs'

test('greets', async () => {
  await using holdfast = await testEngine({ machines: [greet] })
  const [{ data_directory: folder }] = await holdfast.query('SHOW data_directory')
  writeFileSync(${JSON.stringify(`${name}.folder`)}, folder)
  const id = await holdfast.enqueue(greet, { name: 'Ada' }, { delay: '1 day' })
  const { steps, crashes } = await holdfast.drain({ travel: true, crashAt: 'after-step' })
  assert.deepEqual({ steps, crashes }, { steps: 2, crashes: 1 })
  await holdfast.assertDone(id, { hello: 'Ada', attempt: 0 })
  await assert.rejects(holdfast.assertFailed(id), /is done and not failed/)
})
`

test('node:test in a folder of its own: the server starts with the first engine and ends with the process', async () => {
  const root = project({ 'greet.mjs': greet, 'a.test.mjs': testFile('a') })
  const { code, output } = await outputOf(run(root, '--test'))
  expect(output).toMatch(/pass 1\n/)
  expect(code).toBe(0)
  expect(await removed(readFileSync(join(root, 'a.folder'), 'utf8'))).toBe(true)
})

test('files that run side by side do not meet: each with a server, or all with that of a global setup', async () => {
  const files = { 'greet.mjs': greet, 'a.test.mjs': testFile('a'), 'b.test.mjs': testFile('b') }
  const setup = "export { globalSetup, globalTeardown } from '@holdfast/testing/global-setup'\n"
  const root = project({ ...files, 'setup.mjs': setup })
  const folderOf = (name: string): string => readFileSync(join(root, `${name}.folder`), 'utf8')

  const apart = await outputOf(run(root, '--test'))
  expect(apart.output).toMatch(/pass 2\n/)
  expect(folderOf('a')).not.toBe(folderOf('b'))

  const together = await outputOf(run(root, '--test', '--test-global-setup=./setup.mjs'))
  expect(together.output).toMatch(/pass 2\n/)
  expect(folderOf('a')).toBe(folderOf('b'))
  expect(await removed(folderOf('a'))).toBe(true)
}, 120_000)

test('however the process ends, its server ends too', async () => {
  const root = project({
    'greet.mjs': greet,
    'forget.mjs': `
import { testEngine } from '@holdfast/testing'
import { greet } from './greet.mjs'
const holdfast = await testEngine({ machines: [greet] })
await holdfast.drain()
const [{ data_directory: folder }] = await holdfast.query('SHOW data_directory')
console.log(folder)
if (process.argv[2] === 'exit') process.exit(3)
if (process.argv[2] === 'hang') setInterval(() => {}, 1_000)
`,
  })
  const ended = async (way: string, signal?: NodeJS.Signals): Promise<void> => {
    const child = run(root, 'forget.mjs', way)
    const [line] = (await once(child.stdout?.setEncoding('utf8') as NodeJS.EventEmitter, 'data')) as [string]
    expect(existsSync(line.trim()), way).toBe(true)
    const exited = once(child, 'exit')
    if (signal !== undefined) child.kill(signal)
    await exited
    expect(await removed(line.trim()), `${way} ${signal}`).toBe(true)
  }
  // Nothing holds the last one but idle connections, and those go after 10 s.
  await Promise.all([ended('exit'), ended('hang', 'SIGKILL'), ended('hang', 'SIGTERM'), ended('nothing')])
}, 120_000)

test('a server that cannot be had is said, and tried for again', async () => {
  const nowhere = 'postgres://postgres@127.0.0.1:1/postgres'
  await expect(testEngine({ machines: [], databaseUrl: nowhere })).rejects.toThrow(/ECONNREFUSED/)
  await expect(testEngine({ machines: [], databaseUrl: nowhere })).rejects.toThrow(/ECONNREFUSED/)
})

test('a hundred engines and drains leave nothing behind', async () => {
  const tiny = job('tiny', { run: () => null })
  await using watcher = await testEngine({ machines: [tiny] })
  const databases = async (): Promise<string[]> =>
    (await watcher.query<{ name: string }>("SELECT datname AS name FROM pg_database WHERE datname LIKE 'holdfast_test_%'")).map(
      ({ name }) => name,
    )
  const mine: string[] = []
  for (let round = 0; round < 10; round += 1) {
    await using holdfast = await testEngine({ machines: [tiny] })
    mine.push(new URL(holdfast.databaseUrl).pathname.slice(1))
    for (let drain = 0; drain < 12; drain += 1) {
      await holdfast.enqueue(tiny)
      await holdfast.drain(drain === 11 ? { crashAt: 'after-step' } : {})
    }
    const [sessions] = await holdfast.query<{ count: number }>(
      'SELECT count(*)::integer AS count FROM pg_stat_activity WHERE datname = current_database()',
    )
    expect(sessions?.count).toBeLessThanOrEqual(6)
  }
  expect(new Set(mine).size).toBe(10)
  const left = await databases()
  expect(mine.filter((name) => left.includes(name))).toEqual([])
})
