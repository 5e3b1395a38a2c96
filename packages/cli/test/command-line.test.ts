import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { freePort } from '@holdfast/testbed/postgres'
import type { Command } from 'commander'
import { describe, expect, test } from 'vitest'
import { readCliEnv } from '../src/env.ts'
import { ExitCodes, UsageError } from '../src/exit-code.ts'
import { run } from '../src/main.ts'
import { buildProgram } from '../src/program.ts'
import { Session } from '../src/session.ts'
import { holdfast, holdfastJson } from './run-holdfast.ts'

const STACK = /^\s+at /m

/** A command line in this process, which is faster by half a second; whether the binary does the same is tested with the real system. */
async function line(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  let stdout = ''
  let stderr = ''
  const session = new Session(readCliEnv({ HOLDFAST_HOME: '/nowhere', ...env }), '/nowhere')
  const code = await run(args, { session, out: (text) => (stdout += text), err: (text) => (stderr += text) })
  return { code, stdout, stderr }
}
const nowhere = {
  HOLDFAST_URL: 'http://127.0.0.1:9',
  HOLDFAST_TOKEN: 't',
  HOLDFAST_MANAGE_URL: 'http://127.0.0.1:9',
  HOLDFAST_OPERATOR_TOKEN: 't',
}

describe('a wrong command line ends with 2, says what is wrong, what is accepted, and gives an example', () => {
  test.each<[string, string[], RegExp]>([
    ['nothing at all', [], /say what to do: enqueue, signal, get, .*doctor.*holdfast --help/s],
    ['an unknown command', ['enqeue'], /no command "enqeue" in holdfast; there are: enqueue, signal,/],
    [
      'an unknown command of a group',
      ['limits', 'set-rat'],
      /no command "set-rat" in holdfast limits; there are: list, set-rate, set-gate/,
    ],
    [
      'an unknown option',
      ['enqueue', 'm', '--prioritty', '5'],
      /unknown option '--prioritty' \(Did you mean --priority\?\).*example: holdfast enqueue/s,
    ],
    [
      'an argument that is missing',
      ['enqueue'],
      /missing required argument 'machine'.*usage: {3}holdfast enqueue .*example: holdfast enqueue/s,
    ],
    ['an argument too many', ['get', '1', '2'], /too many arguments.*example: holdfast get 42/s],
    ['an option without its value', ['list', '--limit'], /option '--limit <n>' argument missing/],
    ['a priority that is none', ['enqueue', 'm', '--priority', 'high'], /--priority.*'high'.*whole number from -32768 to 32767/s],
    ['a time that is none', ['enqueue', 'm', '--delay', 'soon'], /--delay.*'soon'.*'90 s'/s],
    ['an instant without an offset', ['enqueue', 'm', '--at', '2030-01-01T00:00:00'], /--at.*2030-01-31T08:00:00Z/s],
    ['two times', ['enqueue', 'm', '--delay', '5 s', '--at', '2030-01-01T00:00:00Z'], /--delay or --at, not both/],
    ['a weight without its limit', ['enqueue', 'm', '--weight', '2'], /--rate-limit/],
    ['a rate limit without a name', ['enqueue', 'm', '--rate-limit', ':a'], /name or name:partition/],
    ['a scope that is no end', ['enqueue', 'm', '--keep-key', 'runnable'], /done, failed, cancelled/],
    ['an input that is no JSON', ['enqueue', 'm', '--input', '{to: 1}'], /--input: its value is not JSON.*Expected JSON, @file or -/s],
    ['a file that is not there', ['enqueue', 'm', '--input', '@missing.json'], /--input: missing\.json cannot be read.*ENOENT/s],
    ['a number that JSON would turn into null', ['enqueue', 'm', '--input', '[1e400]'], /too large/],
    ['a number whose digits would be lost', ['enqueue', 'm', '--input', '[9007199254740993]'], /2\^53/],
    ['a status that does not exist', ['list', '--status', 'waiting'], /--status.*waiting.*runnable.*awaiting_signal/s],
    ['an id that is none', ['get', 'order-7'], /'order-7'.*decimal number such as 42/s],
    ['a signal to nobody', ['signal', 'go'], /holdfast signal 42 go, or holdfast signal --key/],
    ['a signal to something that is no id', ['signal', 'order-7', 'go'], /id of an instance/],
    ['a signal by id and key', ['signal', '--key', 'k', '42', 'go'], /an id or --key, not both/],
    ['a cancellation of everything', ['cancel'], /holdfast cancel 42 43, or at least one of --machine.*Nothing is done to everything/s],
    ['a cancellation of everything, meant so', ['cancel', '--all'], /at least one of --machine/],
    ['ids and filters at once', ['retry', '42', '--machine', 'm'], /ids or filters, not both/],
    ['a rate without its rate', ['limits', 'set-rate', 'mail'], /--rate <n>' not specified/],
    ['a schedule without its machine', ['schedules', 'put', 'x', '--cron', '* * * * *'], /--machine <name>' not specified/],
    ['an access that does not exist', ['token', 'create', '--access', 'admin'], /read_only, read_write/],
    ['an address that is none', ['queues', '--url', 'localhost:7400'], /"localhost:7400" is no address of the API: expected one like http/],
    ['a database that is none', ['doctor', '--database-url', 'mysql://x'], /starts with postgres:\/\//],
  ])('%s', async (_what, args, message) => {
    const { code, stdout, stderr } = await line(args, nowhere)
    expect(stderr).toMatch(message)
    expect(stderr).not.toMatch(STACK)
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
  })

  test('under --json as a document, wherever --json stands', async () => {
    for (const args of [
      ['--json', 'enqueue', 'm', '--nothing'],
      ['enqueue', 'm', '--nothing', '--json'],
      ['nothing', '--json'],
    ]) {
      const { code, stdout, stderr } = await holdfast(args)
      expect({ code, stderr }).toEqual({ code: 2, stderr: '' })
      expect(JSON.parse(stdout)).toEqual({ error: { code: 'usage', message: expect.stringMatching(/nothing/) as string } })
    }
  })
})

describe('where it connects to', () => {
  test('an unknown address or token is said, with every way to give it', async () => {
    expect(await holdfast(['queues'])).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(/no address of the API.*--url or HOLDFAST_URL.*npm start/s) as string,
    })
    expect(await holdfast(['queues', '--url', 'http://127.0.0.1:9'])).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(/no token.*HOLDFAST_TOKEN/s) as string,
    })
    expect(await holdfast(['project'])).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(/management API.*HOLDFAST_MANAGE_URL/s) as string,
    })
    expect(await holdfast(['migrate'])).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(/no database is known.*HOLDFAST_DATABASE_URL/s) as string,
    })
  })

  test('nobody there ends with 3', async () => {
    const url = `http://127.0.0.1:${await freePort()}`
    const env = { ...nowhere, HOLDFAST_URL: url, HOLDFAST_MANAGE_URL: url }
    for (const args of [
      ['get', '1'],
      ['project', 'list'],
      ['limits', 'set-gate', 'g', '--capacity', '1'],
    ]) {
      const { code, document } = await holdfastJson<{ error: { code: string; message: string } }>(args, { env })
      expect(code).toBe(3)
      expect(document.error).toMatchObject({
        code: 'unreachable',
        message: expect.stringMatching(/127\.0\.0\.1:.*Is the API running there/s) as string,
      })
    }
    for (const command of ['migrate', 'doctor']) {
      const { code, document } = await holdfastJson<{ error: { code: string; message: string } }>([command], {
        env: { HOLDFAST_DATABASE_URL: 'postgres://nobody@127.0.0.1:9/nothing' },
      })
      expect(code).toBe(3)
      expect(document.error.message).toMatch(/the database cannot be used: .*ECONNREFUSED.*HOLDFAST_DATABASE_URL/s)
    }
  }, 60_000)

  test("the local system's addresses and tokens are found, below the folder too; its token is not sent elsewhere", () => {
    const folder = mkdtempSync(join(tmpdir(), 'holdfast-home-'))
    writeFileSync(
      join(folder, 'dev.json'),
      JSON.stringify({ apiUrl: 'http://127.0.0.1:1', token: 'local', databaseUrl: 'postgres://local/db' }),
    )
    const session = new Session(readCliEnv({ HOLDFAST_HOME: folder }), '/')
    expect(session.databaseUrl({})).toBe('postgres://local/db')
    expect(session.databaseUrl({ databaseUrl: 'postgres://other/db' })).toBe('postgres://other/db')
    expect(() => session.client({})).not.toThrow()
    expect(() => session.client({ url: 'http://127.0.0.1:1' })).not.toThrow()
    expect(() => session.client({ url: 'http://elsewhere.example' })).toThrow(/no token for the API/)
    expect(() => session.manage({})).toThrow(/no address of the management API/)
  })
})

describe('help', () => {
  /** Stops a command where it would connect: nothing about its line was refused. */
  class Reached extends Session {
    override client(): never {
      throw new UsageError('reached')
    }
    override api(): never {
      throw new UsageError('reached')
    }
    override manage(): never {
      throw new UsageError('reached')
    }
    override databaseUrl(): never {
      throw new UsageError('reached')
    }
  }
  const session = new Reached(readCliEnv({}), '/')
  const leaves = (command: Command): Command[] => [command, ...command.commands.flatMap(leaves)]
  const commands = leaves(buildProgram({ context: { session, say: () => {} }, answer: () => {} }, () => {})).slice(1)
  const pathOf = (command: Command): string => (command.parent === null ? '' : `${pathOf(command.parent)} ${command.name()}`.trim())
  const flat = (text: string): string => text.replaceAll(/\s+/g, ' ')

  test.each(commands.map((command) => [pathOf(command), command] as const))(
    'of %s has a summary, and examples that its own parser takes',
    async (path, command) => {
      const { code, stdout, stderr } = await line([...path.split(' '), '--help'])
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
      expect(command.summary()).not.toBe('')
      expect(flat(stdout)).toContain(command.summary())
      const [, examples = ''] = stdout.split('\nExamples:\n')
      const lines = examples.trim().split('\n')
      for (const each of lines) {
        expect(each.trim()).toMatch(new RegExp(`^holdfast ${path.split(' ')[0]}`))
        const [, ...words] = [...each.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, bare]) => quoted ?? bare ?? '')
        let said = ''
        await run(
          words.map((word) => (word.startsWith('@') ? '{}' : word)),
          { session, out: (text) => (said += text), err: (text) => (said += text) },
        )
        expect(said, each).toContain('reached')
      }
    },
  )

  test('of holdfast itself names every command, the environment and the exit codes', async () => {
    const { code, stdout } = await holdfast(['--help'])
    expect(code).toBe(0)
    for (const command of commands.filter(({ parent }) => parent?.parent === null)) expect(stdout).toContain(`\n  ${command.name()} `)
    for (const word of ['HOLDFAST_URL', 'HOLDFAST_DATABASE_URL', 'Exit codes']) expect(stdout).toContain(word)
    expect((await holdfast(['--version'])).stdout).toMatch(/^\d+\.\d+\.\d+\n$/)
  })
})

test('docs/cli.md names every command and every exit code', () => {
  const page = readFileSync(join(import.meta.dirname, '../../../docs/cli.md'), 'utf8')
  const program = buildProgram({ context: { session: new Session(readCliEnv({}), '/'), say: () => {} }, answer: () => {} }, () => {})
  for (const { name } of program.commands.map((command) => ({ name: command.name() })))
    expect(page).toMatch(new RegExp(`^\\| .*\`${name}\\b`, 'm'))
  const codes = [...page.matchAll(/^\| (\d+) \|/gm)].map(([, code]) => Number(code))
  expect(codes).toEqual(Object.values(ExitCodes))
})
