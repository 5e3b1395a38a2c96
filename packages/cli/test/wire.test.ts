// What goes over the wire for operations, request by request, and what the command makes of each answer. The server here records and answers as it is told;
// `control.test.ts` sends the same to a real API.
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { readCliEnv } from '../src/env.ts'
import { run } from '../src/main.ts'
import { Session } from '../src/session.ts'

interface Request {
  readonly method: string | undefined
  readonly path: string | undefined
  readonly body: unknown
}
let server: Server
let url: string
let requests: Request[]
let answers: { readonly status: number; readonly body?: unknown }[]

beforeAll(async () => {
  server = createServer((request, response) => {
    let text = ''
    request.on('data', (data: Buffer) => (text += data.toString()))
    request.on('end', () => {
      requests.push({ method: request.method, path: request.url, body: text === '' ? undefined : JSON.parse(text) })
      const { status, body } = answers.shift() ?? {
        status: 500,
        body: { error: { code: 'internal', message: 'nothing more was expected' } },
      }
      response.writeHead(status, { 'content-type': 'application/json' }).end(body === undefined ? undefined : JSON.stringify(body))
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
afterAll(() => {
  server.close()
  server.closeAllConnections()
})
beforeEach(() => {
  requests = []
  answers = []
})

async function line(...args: string[]) {
  let stdout = ''
  let stderr = ''
  const session = new Session(readCliEnv({ HOLDFAST_HOME: '/nowhere', HOLDFAST_URL: url, HOLDFAST_TOKEN: 't' }), '/nowhere')
  const code = await run(args, { session, out: (text) => (stdout += text), err: (text) => (stderr += text) })
  return { code, stdout, stderr }
}
const conflict = { status: 409, body: { error: { code: 'instance_conflict', message: 'instance 43 is done' } } }

test('enqueue with a rate limit, a partition and a weight', async () => {
  answers = [{ status: 201, body: { id: '1', created: true } }]
  await line('enqueue', 'm', '--input', '[1]', '--rate-limit', 'mail:tenant:7', '--weight', '3')
  expect(requests).toEqual([
    {
      method: 'POST',
      path: '/v1/instances',
      body: { machine: 'm', input: [1], rate_limit: { name: 'mail', partition: 'tenant:7', weight: 3 } },
    },
  ])
})

describe.each(['cancel', 'retry'] as const)('%s', (verb) => {
  test('by ids: one after the other, with the reason; a refused one is shown and ends it with 1', async () => {
    answers = [{ status: 200, body: { id: '42', status: 'cancelled' } }, conflict, { status: 200, body: { id: '44', status: 'cancelled' } }]
    const { code, stdout } = await line(verb, '42', '43', '44', '--reason', 'because', '--json')
    expect(code).toBe(1)
    expect(requests).toEqual(
      ['42', '43', '44'].map((id) => ({ method: 'POST', path: `/v1/instances/${id}/${verb}`, body: { reason: 'because' } })),
    )
    expect(JSON.parse(stdout)).toEqual({
      results: [
        { id: '42', status: 'cancelled' },
        { id: '43', error: { code: 'instance_conflict', message: 'instance_conflict: instance 43 is done' } },
        { id: '44', status: 'cancelled' },
      ],
    })
  })

  test('by filter: one request, and whether more match', async () => {
    answers = [{ status: 200, body: { matched: 2, ids: ['1', '2'], more: true } }]
    const { code, stdout } = await line(
      verb,
      '--machine',
      'm',
      '--status',
      'failed',
      '--queue',
      'q',
      '--correlation-key',
      'k',
      '--parent',
      '7',
      '--limit',
      '2',
    )
    expect(code).toBe(0)
    const filter = { machine: 'm', status: 'failed', queue: 'q', correlation_key: 'k', parent_id: '7' }
    expect(requests).toEqual([{ method: 'POST', path: `/v1/instances/${verb}`, body: { filter, limit: 2 } }])
    expect(stdout).toMatch(/^2 .*more match/)
  })

  test('by filter, all of it: a thousand in a request until nothing more matches', async () => {
    const batch = (next: string | undefined, ...ids: string[]) => ({
      status: 200,
      body: { matched: ids.length, ids, more: next !== undefined, next },
    })
    answers = [batch('2', '1', '2'), batch('3', '3'), batch(undefined, '4')]
    const { stdout } = await line(verb, '--machine', 'm', '--all', '--json')
    expect(requests.map(({ body }) => body)).toEqual(
      [{}, { after: '2' }, { after: '3' }].map((after) => ({ filter: { machine: 'm' }, limit: 1_000, ...after })),
    )
    expect(JSON.parse(stdout)).toEqual({ matched: 4, ids: ['1', '2', '3', '4'], more: false })
  })

  test('goes on after what was looked at, also where nothing of it matched', async () => {
    answers = [
      { status: 200, body: { matched: 0, ids: [], more: true, next: '70' } },
      { status: 200, body: { matched: 1, ids: ['8'], more: false } },
    ]
    expect((await line(verb, '--machine', 'm', '--all')).code).toBe(0)
    expect(requests).toHaveLength(2)
    expect(requests[1]).toMatchObject({ body: { after: '70' } })
  })
})

describe('limits', () => {
  test('set-rate and set-gate', async () => {
    answers = [
      { status: 200, body: { kind: 'rate', name: 'mail/x', rate: 100, period_ms: 60_000, burst: 200, shards: 2 } },
      { status: 200, body: { kind: 'rate', name: 'plain', rate: 0, period_ms: 1_000 } },
      { status: 200, body: { kind: 'gate', name: 'printer', capacity: 3 } },
    ]
    expect(
      (await line('limits', 'set-rate', 'mail/x', '--rate', '100', '--per', '1 min', '--burst', '200', '--shards', '2')).stdout,
    ).toMatch(/^burst\s+200$/m)
    await line('limits', 'set-rate', 'plain', '--rate', '0')
    expect((await line('limits', 'set-gate', 'printer', '--capacity', '3')).stdout).toMatch(/^capacity\s+3$/m)
    expect(requests).toEqual([
      { method: 'PUT', path: '/v1/limits/rate/mail%2Fx', body: { rate: 100, period: 60_000, burst: 200, shards: 2 } },
      { method: 'PUT', path: '/v1/limits/rate/plain', body: { rate: 0 } },
      { method: 'PUT', path: '/v1/limits/gate/printer', body: { capacity: 3 } },
    ])
  })

  test('list: a line for each key in use', async () => {
    const limits = [
      {
        kind: 'rate',
        name: 'mail',
        rate: 100,
        period_ms: 60_000,
        burst: 200,
        shards: 1,
        keys: [{ key: 'mail:a', tokens: 12, waiting: 5 }],
      },
      {
        kind: 'gate',
        name: 'printer',
        capacity: 3,
        keys: [
          { key: 'printer', held: 3, waiting: 70 },
          { key: 'printer:2', held: 1, waiting: 0 },
        ],
      },
      { kind: 'gate', name: 'idle', capacity: 1, keys: [] },
    ]
    answers = [
      { status: 200, body: { limits } },
      { status: 200, body: { limits } },
    ]
    const { stdout } = await line('limits')
    expect(stdout).toMatch(/^rate\s+mail\s+100 in 60000 ms, burst 200\s+mail:a\s+12 left\s+5$/m)
    expect(stdout).toMatch(/^gate\s+printer\s+3 at once\s+printer\s+3 held\s+70$/m)
    expect(stdout).toMatch(/^gate\s+idle\s+1 at once\s+0$/m)
    expect(JSON.parse((await line('limits', 'list', '--json')).stdout)).toEqual({ limits })
  })
})

test('schedules: put, get, list, delete', async () => {
  const schedule = {
    name: 'nightly',
    cron: '0 3 * * *',
    timezone: 'Europe/Berlin',
    machine: 'report',
    next_at: '2030-01-01T02:00:00Z',
    last_at: null,
  }
  answers = [
    { status: 200, body: schedule },
    { status: 200, body: schedule },
    { status: 200, body: { schedules: [schedule] } },
    { status: 204 },
  ]
  await line(
    'schedules',
    'put',
    'nightly',
    '--cron',
    '0 3 * * *',
    '--timezone',
    'Europe/Berlin',
    '--machine',
    'report',
    '--input',
    '{"a":1}',
    '--catch-up',
    'one',
    '--overlap',
    'skip',
  )
  expect((await line('schedules', 'get', 'nightly')).stdout).toMatch(/^next\s+2030-01-01T02:00:00Z$/m)
  expect((await line('schedules')).stdout).toMatch(/^nightly\s+0 3 \* \* \*\s+Europe\/Berlin\s+report/m)
  expect(await line('schedules', 'delete', 'nightly', '--json')).toMatchObject({ code: 0, stdout: '{"name":"nightly","deleted":true}\n' })
  expect(requests).toEqual([
    {
      method: 'PUT',
      path: '/v1/schedules/nightly',
      body: { cron: '0 3 * * *', machine: 'report', timezone: 'Europe/Berlin', input: { a: 1 }, catch_up: 'one', overlap: 'skip' },
    },
    { method: 'GET', path: '/v1/schedules/nightly', body: undefined },
    { method: 'GET', path: '/v1/schedules', body: undefined },
    { method: 'DELETE', path: '/v1/schedules/nightly', body: undefined },
  ])
})

test('what a name holds cannot become control characters of the terminal, or another path', async () => {
  answers = [
    { status: 200, body: { schedules: [{ name: 'a\u001b[2Jb', cron: '*', machine: 'm' }] } },
    { status: 404, body: { error: { code: 'not_found', message: 'no' } } },
  ]
  expect((await line('schedules')).stdout).not.toContain('\u001b')
  await line('schedules', 'get', '../limits?x')
  expect(requests[1]?.path).toBe('/v1/schedules/..%2Flimits%3Fx')
})

test('an API whose database is away ends with 3', async () => {
  answers = Array.from({ length: 4 }, () => ({ status: 503, body: { error: { code: 'no_database_capacity', message: 'away' } } }))
  expect((await line('get', '1')).code).toBe(3)
})
