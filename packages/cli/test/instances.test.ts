// Against the six roles' real processes, as far as instances need them.
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Instance, InstanceList, QueueList } from '@holdfast/contracts'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { holdfast, holdfastJson, type RunOptions } from './run-holdfast.ts'
import { SystemUnderTest } from './system-under-test.ts'

let system: SystemUnderTest
beforeAll(async () => {
  system = await SystemUnderTest.start('scheduler', 'flusher', 'reaper')
})
afterAll(() => system[Symbol.asyncDispose]())

const run = (args: readonly string[], options: RunOptions = {}) => holdfast(args, { env: system.env, ...options })
const json = <Document>(args: readonly string[], options: RunOptions = {}) => holdfastJson<Document>(args, { env: system.env, ...options })
const enqueue = async (...args: string[]): Promise<string> => (await json<{ id: string }>(['enqueue', ...args])).document.id
const MAIL = '{"to":"ada@example.com","subject":"Hello"}'

describe('enqueue', () => {
  test('says the id, which get --wait follows to the end', async () => {
    const { code, stdout, stderr } = await run(['enqueue', 'send-email', '--input', MAIL])
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    expect(stdout).toMatch(/^\d+\n$/)
    const ended = await json<Instance>(['get', stdout.trim(), '--wait', '--timeout', '20 s'])
    expect(ended).toMatchObject({ code: 0, document: { status: 'done', result: { to: 'ada@example.com' } } })
  })

  test('takes its input from a file and from the standard input', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'holdfast-input-'))
    writeFileSync(join(folder, 'mail.json'), MAIL)
    const fromFile = await json<{ id: string }>(['enqueue', 'send-email', '--delay', '1 day', '--input', '@mail.json'], { cwd: folder })
    const fromStdin = await json<{ id: string }>(['enqueue', 'send-email', '--delay', '1 day', '--input', '-'], { stdin: MAIL })
    for (const { document } of [fromFile, fromStdin])
      expect((await json<Instance>(['get', document.id])).document).toMatchObject({
        status: 'scheduled',
        state: JSON.parse(MAIL) as object,
      })
  })

  test('sends every option', async () => {
    const id = await enqueue(
      'checkout',
      '--input',
      '{"order":1}',
      '--queue',
      'slow',
      '--priority',
      '-5',
      '--at',
      '2099-01-01T00:00:00+01:00',
      '--machine-version',
      '1',
      '--correlation-key',
      'all',
      '--keep-key',
      'done',
      '--keep-key',
      'failed',
      '--concurrency-key',
      'c:1',
    )
    expect((await json<Instance>(['get', id])).document).toMatchObject({
      machine: 'checkout',
      version: 1,
      queue: 'slow',
      priority: -5,
      status: 'scheduled',
      eligible_at: '2098-12-31T23:00:00.000Z',
      correlation_key: 'all',
      concurrency_key: 'c:1',
    })
  })

  test('answers the occupant of a key, and says that it did', async () => {
    const id = await enqueue('checkout', '--input', '{"order":2}', '--correlation-key', 'twice', '--delay', '1 day')
    expect((await json(['enqueue', 'checkout', '--correlation-key', 'twice'])).document).toEqual({ id, created: false })
    expect((await run(['enqueue', 'checkout', '--correlation-key', 'twice'])).stdout).toBe(
      `${id}  (not inserted: instance ${id} occupies the key twice)\n`,
    )
  })

  test('of a machine that nobody has declared is refused with 1', async () => {
    expect(await json(['enqueue', 'nobody'])).toMatchObject({ code: 1, document: { error: { code: 'unknown_machine' } } })
    const { code, stdout, stderr } = await run(['enqueue', 'nobody'])
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
    expect(stderr).toMatch(/^holdfast: unknown_machine: /)
  })

  test('with a token that is none is refused, and the ways to give one are named', async () => {
    const { code, stderr } = await run(['enqueue', 'checkout', '--token', 'hf_rw_wrong'])
    expect(code).toBe(1)
    expect(stderr).toMatch(/unauthenticated.*HOLDFAST_TOKEN/s)
  })
})

describe('signal', () => {
  test('by key and by id; a second one with the same dedup key does nothing', async () => {
    const id = await enqueue('checkout', '--input', '{"order":7}', '--correlation-key', 'order-7')
    await expect.poll(async () => (await json<Instance>(['get', id])).document.status, { timeout: 20_000 }).toBe('awaiting_signal')
    const signal = ['payment_confirmed', '--payload', '{"amount":1200}', '--dedup-key', 'p']
    expect((await run(['signal', '--key', 'order-7', ...signal])).stdout).toBe('delivered\n')
    const ended = await json<Instance>(['get', id, '--wait', '--history'])
    expect(ended.document).toMatchObject({
      status: 'done',
      result: { order: 7, paid: 1200 },
      transitions: [{ kind: 'await_signal' }, { kind: 'done' }],
    })

    const other = await enqueue('checkout', '--input', '{"order":8}', '--delay', '1 day')
    expect((await json(['signal', other, ...signal])).document).toEqual({ delivered: true, duplicate: false })
    expect((await json(['signal', other, ...signal])).document).toEqual({ delivered: true, duplicate: true })
  })

  test('to nobody is refused with 1', async () => {
    expect(await json(['signal', '999999', 'x'])).toMatchObject({ code: 1, document: { error: { code: 'not_found' } } })
  })
})

describe('get', () => {
  test('shows what there is, and with --history what was done', async () => {
    const id = await enqueue('send-email', '--input', MAIL)
    await run(['get', id, '--wait'])
    const { stdout } = await run(['get', id, '--history'])
    expect(stdout).toMatch(/^machine\s+send-email\/1$/m)
    expect(stdout).toMatch(/^status\s+done$/m)
    expect(stdout).toMatch(/^result\s+\{"to":"ada@example.com"/m)
    expect(stdout).toMatch(/^step\s+try\s+answered\s+now/m)
    expect(stdout).toMatch(/^\S+\s+0\s+done\s+done/m)
  })

  test('--wait ends with 1 when the instance failed, and shows it', async () => {
    const id = await enqueue('send-email', '--input', '{"to":"ada@fail.example","subject":"Hello"}')
    expect(await json(['get', id, '--wait'])).toMatchObject({ code: 1, document: { status: 'failed', error: { code: 'no_such_address' } } })
    expect(await json(['get', id])).toMatchObject({ code: 0, document: { status: 'failed' } })
  })

  test('--wait ends with 1 when the time is over', async () => {
    const id = await enqueue('checkout', '--input', '{"order":9}')
    expect(await json(['get', id, '--wait', '--timeout', '300'])).toMatchObject({ code: 1, document: { error: { code: 'not_settled' } } })
  })

  test('of nothing is refused', async () => {
    expect(await json(['get', '999999'])).toMatchObject({ code: 1, document: { error: { code: 'not_found' } } })
  })
})

describe('list', () => {
  test('filters, and goes on where the page before ended', async () => {
    const ids: string[] = []
    for (const order of [1, 2, 3])
      ids.unshift(await enqueue('checkout', '--input', `{"order":${order}}`, '--queue', 'listed', '--delay', '1 day'))
    const first = (await json<InstanceList>(['list', '--queue', 'listed', '--limit', '2'])).document
    expect(first.instances.map(({ id }) => id)).toEqual(ids.slice(0, 2))
    const rest = (await json<InstanceList>(['list', '--queue', 'listed', '--after', String(first.next)])).document
    expect(rest.instances.map(({ id }) => id)).toEqual(ids.slice(2))
    const { stdout } = await run(['list', '--machine', 'checkout', '--status', 'scheduled', '--queue', 'listed', '--limit', '2'])
    expect(stdout).toMatch(/^id\s+machine\s+status/)
    expect(stdout).toContain(`there may be more: --after ${ids[1]}`)
    expect((await run(['list', '--queue', 'nothing'])).stdout).toBe('no instance matches\n')
  })

  test('more than a request may ask for', async () => {
    await system.query(`INSERT INTO holdfast.instance (project_id, machine, queue, status, eligible_at)
      SELECT 1, 'checkout', 'many', 'scheduled', now() + interval '1 day' FROM generate_series(1, 700)`)
    const { instances, next } = (await json<InstanceList>(['list', '--queue', 'many', '--limit', '650'])).document
    expect(new Set(instances.map(({ id }) => id)).size).toBe(650)
    expect(next).toBe(instances.at(-1)?.id)
  })
})

test('queues shows what waits, and pauses and resumes', async () => {
  await enqueue('checkout', '--input', '{"order":1}', '--queue', 'shown', '--delay', '1 day')
  const of = (list: QueueList, name: string) => list.queues.find(({ queue }) => queue === name)
  expect(of((await json<QueueList>(['queues'])).document, 'shown')).toMatchObject({ paused: false, depth: { scheduled: 1 } })
  expect((await run(['queues', 'pause', 'shown'])).stdout).toBe('shown is paused\n')
  expect((await run(['queues'])).stdout).toMatch(/^shown\s+paused\s+0\s+0\s+1\s/m)
  expect((await json(['queues', 'resume', 'shown'])).document).toEqual({ queue: 'shown', paused: false })
  expect(of((await json<QueueList>(['queues', 'list', '--all-projects'])).document, 'shown')).toMatchObject({ paused: false })
})

test('projects and tokens: created, listed, suspended, revoked', async () => {
  expect((await json(['project', 'create', 'shop'])).document).toMatchObject({ name: 'shop', suspended: false })
  expect(await json(['project', 'create', 'shop'])).toMatchObject({ code: 1, document: { error: { code: 'project_conflict' } } })
  expect(await json(['project', 'create', 'Not A Name'])).toMatchObject({ code: 1, document: { error: { code: 'invalid_project' } } })
  expect((await run(['project'])).stdout).toMatch(/^default\s+open.*\nshop\s+open/m)

  const { stdout } = await run(['token', 'create', '--project', 'shop', '--access', 'read_only', '--label', 'dashboard'])
  expect(stdout).toMatch(/^hf_ro_\S+\n$/)
  const token = stdout.trim()
  expect((await run(['queues', '--token', token])).code).toBe(0)
  expect(await json(['enqueue', 'checkout', '--token', token])).toMatchObject({ code: 1, document: { error: { code: 'forbidden' } } })

  expect((await run(['project', 'suspend', 'shop'])).stdout).toMatch(/shop\s+suspended/)
  expect((await run(['queues', '--token', token])).code).toBe(1)
  await run(['project', 'resume', 'shop'])
  expect((await run(['queues', '--token', token])).code).toBe(0)

  const { credentials } = (await json<{ credentials: { id: string; label: string }[] }>(['token', '--project', 'shop'])).document
  expect(credentials).toMatchObject([{ label: 'dashboard' }])
  expect((await run(['token', 'revoke', credentials[0]?.id ?? '', '--project', 'shop'])).code).toBe(0)
  expect((await run(['queues', '--token', token])).code).toBe(1)
  expect(await json(['token', 'list', '--project', 'nothing'])).toMatchObject({ code: 1, document: { error: { code: 'not_found' } } })
})
