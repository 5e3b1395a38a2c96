// The starter in a folder of its own, with an npm and a pnpm that do what the test wants.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, expect, test } from 'vitest'

const repository = join(import.meta.dirname, '../..')
const clones: string[] = []
const children: ChildProcess[] = []
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL')
  for (const clone of clones.splice(0)) rmSync(clone, { recursive: true, force: true })
})

const pnpm = `echo "pnpm $*" >> calls.log`
const npm = `echo "npm $*" >> ../../calls.log; mkdir -p node_modules/.bin; cp ../../pnpm node_modules/.bin/pnpm`

class Clone {
  readonly root = mkdtempSync(join(tmpdir(), 'holdfast-bootstrap-'))

  constructor(scripts: { readonly npm?: string; readonly pnpm?: string; readonly start?: string }) {
    clones.push(this.root)
    this.write('package.json', '{}')
    this.write('pnpm-workspace.yaml', 'packages:\n  - packages/*\n  - tests\n\ncatalog:\n  a: 1.0.0\n')
    this.write('packages/engine/package.json', '{}')
    this.write('tests/package.json', '{}')
    this.write('pnpm-lock.yaml', '')
    this.write('tools/toolchain/package.json', '{}')
    this.write('tools/toolchain/package-lock.json', '{}')
    this.write('tools/start.ts', scripts.start ?? 'const args: string[] = process.argv.slice(2)\nconsole.log(JSON.stringify(args))\n')
    this.script('bin/npm', scripts.npm ?? npm)
    this.script('pnpm', scripts.pnpm ?? pnpm)
    copyFileSync(join(repository, 'tools/bootstrap.mjs'), join(this.root, 'tools/bootstrap.mjs'))
  }

  write(file: string, text: string): void {
    mkdirSync(dirname(join(this.root, file)), { recursive: true })
    writeFileSync(join(this.root, file), text)
  }

  script(file: string, text: string): void {
    this.write(file, `#!/bin/sh\n${text}\n`)
    chmodSync(join(this.root, file), 0o755)
  }

  get #environment(): NodeJS.ProcessEnv {
    return { PATH: `${join(this.root, 'bin')}:/usr/bin:/bin` }
  }

  run(args: readonly string[], nodeArgs: readonly string[] = []) {
    return spawnSync(process.execPath, [...nodeArgs, join(this.root, 'tools/bootstrap.mjs'), ...args], {
      env: this.#environment,
      encoding: 'utf8',
    })
  }

  spawn(args: readonly string[]): ChildProcess {
    const child = spawn(process.execPath, [join(this.root, 'tools/bootstrap.mjs'), ...args], {
      env: this.#environment,
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    children.push(child)
    return child
  }

  calls(): string[] {
    const file = join(this.root, 'calls.log')
    return existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : []
  }
}

const STACK = /^\s+at /m

test('a task that does not exist is refused with the list of those that do, before anything is fetched', () => {
  const clone = new Clone({})
  const { status, stderr } = clone.run(['strat'])
  expect(status).toBe(1)
  expect(stderr).toMatch(/no task named strat.*start, test, verify/s)
  expect(stderr).not.toMatch(STACK)
  expect(clone.calls()).toEqual([])
})

test('every npm script names a task that exists, and a file that is there', () => {
  const { scripts } = JSON.parse(readFileSync(join(repository, 'package.json'), 'utf8')) as { scripts: Record<string, string> }
  const source = readFileSync(join(repository, 'tools/bootstrap.mjs'), 'utf8')
  const known = [...(/const tasks = \[([^\]]*)\]/.exec(source)?.[1] ?? '').matchAll(/'([\w-]+)'/g)].map(([, name]) => name)
  const called = Object.values(scripts).map((script) => /^node tools\/bootstrap\.mjs ([\w-]+)$/.exec(script)?.[1])
  expect(new Set(called)).toEqual(new Set(known))
  for (const task of called) expect(existsSync(join(repository, `tools/${task}.ts`)), `tools/${task}.ts`).toBe(true)
})

test('a Node that is too old is told which one is needed', () => {
  const clone = new Clone({})
  const old = 'data:text/javascript,Object.defineProperty(process,"versions",{value:{...process.versions,node:"18.19.1"}})'
  const { status, stderr } = clone.run(['start'], ['--import', old])
  expect(status).toBe(1)
  expect(stderr).toMatch(/Node 18\.19\.1 is too old.*Install Node 20 or later/s)
  expect(stderr).not.toMatch(STACK)
})

test('an npm that cannot fetch leaves a message that says what was tried, and is tried again the next time', () => {
  const clone = new Clone({ npm: 'echo "npm ERR! network" >&2; exit 7' })
  const { status, stderr } = clone.run(['start'])
  expect(status).toBe(1)
  expect(stderr).toMatch(/npm ERR! network.*could not fetch pnpm and Node.*`npm ci .*exit code 7.*npm ping.*run the same command again/s)
  expect(stderr).not.toMatch(STACK)
  clone.script('bin/npm', npm)
  expect(clone.run(['start']).status).toBe(0)
})

test('a machine without npm is told so', () => {
  const clone = new Clone({})
  rmSync(join(clone.root, 'bin/npm'))
  const { status, stderr } = spawnSync(process.execPath, [join(clone.root, 'tools/bootstrap.mjs')], {
    env: { PATH: join(clone.root, 'bin') },
    encoding: 'utf8',
  })
  expect(status).toBe(1)
  expect(stderr).toMatch(/`npm ci .*` is not there.*npm comes with Node/s)
  expect(stderr).not.toMatch(STACK)
})

test('a failed installation of the dependencies says how to bring the lockfile up to date', () => {
  const clone = new Clone({ pnpm: 'exit 1' })
  const { status, stderr } = clone.run(['start'])
  expect(status).toBe(1)
  expect(stderr).toMatch(/could not install the dependencies.*pnpm install --frozen-lockfile.*--no-frozen-lockfile/s)
})

test('it installs once, and again after a change of any manifest of the workspace', () => {
  const clone = new Clone({})
  clone.write('node_modules/.keep', '')
  for (const _ of [1, 2]) expect(clone.run(['start']).status).toBe(0)
  expect(clone.calls()).toEqual([expect.stringMatching(/^npm ci /), expect.stringMatching(/^pnpm install --frozen-lockfile/)])
  for (const file of ['packages/engine/package.json', 'tests/package.json', 'package.json', 'pnpm-lock.yaml']) {
    const before = clone.calls().length
    clone.write(file, '{ "name": "changed" }')
    clone.run(['start'])
    expect(clone.calls().slice(before), file).toEqual([expect.stringMatching(/^pnpm install/)])
  }
})

test('arguments reach the task, with and without --', () => {
  const clone = new Clone({})
  expect(JSON.parse(clone.run(['start', '--instances', '10 000']).stdout)).toEqual(['--instances', '10 000'])
  expect(JSON.parse(clone.run(['start', '--', '--instances', '5']).stdout)).toEqual(['--instances', '5'])
})

test("the exit code is the task's, also when a signal ended it", () => {
  expect(new Clone({ start: 'process.exit(3)\n' }).run(['start']).status).toBe(3)
  expect(new Clone({ start: "process.kill(process.pid, 'SIGKILL')\n" }).run(['start']).status).toBe(137)
})

test.each(['SIGINT', 'SIGTERM', 'SIGHUP'] as const)(
  '%s to the starter alone reaches the task, and its end is waited for',
  async (signal) => {
    const clone = new Clone({
      start: `process.on('${signal}', () => { console.log('cleaned up'); process.exit(5) })\nsetInterval(() => {}, 60_000)\nconsole.log('ready')\n`,
    })
    const child = clone.spawn(['start'])
    const lines: string[] = []
    if (child.stdout === null) throw new Error('no stdout')
    createInterface({ input: child.stdout }).on('line', (line) => {
      lines.push(line)
      if (line === 'ready') child.kill(signal)
    })
    const [code] = (await once(child, 'close')) as [number | null]
    expect({ code, lines }).toEqual({ code: 5, lines: ['ready', 'cleaned up'] })
  },
)
