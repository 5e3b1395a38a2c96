import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { HoldfastApiError, HoldfastClient, HoldfastUnreachableError } from '@holdfast/client'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'

// A server that does what no healthy API does, one act for each request that reaches it; the last act is repeated.
type Act = (request: IncomingMessage, response: ServerResponse) => void
let server: Server
let acts: Act[]
let reached: string[]
let url: string

beforeEach(async () => {
  reached = []
  server = createServer((request, response) => {
    request.resume().once('end', () => {
      const act = acts[Math.min(reached.length, acts.length - 1)]
      reached.push(`${request.method} ${request.url}`)
      act?.(request, response)
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
afterEach(async () => {
  server.close()
  server.closeAllConnections()
  await once(server, 'close').catch(() => undefined)
})

const answer =
  (status: number, body: unknown, headers: Record<string, string> = {}): Act =>
  (_request, response) =>
    void response
      .writeHead(status, { 'content-type': 'application/json', ...headers })
      .end(typeof body === 'string' ? body : JSON.stringify(body))
const refuse = (status: number, code: string): Act => answer(status, { error: { code, message: 'try again' } })
const vanish: Act = (_request, response) => void response.socket?.destroy()
const made = answer(201, { id: '1', created: true })
const client = (retries?: number, timeoutMs?: number) =>
  new HoldfastClient({ url, token: 't', ...(retries === undefined ? {} : { retries }), ...(timeoutMs === undefined ? {} : { timeoutMs }) })

describe('what may be sent again is', () => {
  test.each([
    ['a lost connection', vanish],
    ['502', answer(502, '<html>bad gateway</html>')],
    ['503', refuse(503, 'no_database_capacity')],
    ['504', answer(504, '')],
    ['429', refuse(429, 'rate_limited')],
  ])('%s: a read, an enqueue and a signal with their keys', async (_name, act) => {
    acts = [act, answer(200, { queues: [] })]
    expect(await client().queues()).toEqual([])
    expect(reached).toHaveLength(2)

    reached = []
    acts = [act, made]
    expect(await client().enqueue('m', {}, { correlationKey: 'k' })).toEqual({ id: '1', created: true })
    expect(reached).toHaveLength(2)

    reached = []
    acts = [act, answer(202, { delivered: true, duplicate: false })]
    expect(await client().signal({ id: '1' }, 'go', {}, { dedupKey: 'd' })).toEqual({ delivered: true, duplicate: false })
    expect(reached).toHaveLength(2)
  })

  test('a many of which each has its key; not one of which one has none', async () => {
    acts = [vanish, answer(201, { ids: ['1'], created: 1, duplicates: 0 })]
    await client().enqueueMany([{ machine: 'm', correlationKey: 'k' }])
    expect(reached).toHaveLength(2)
    reached = []
    await expect(client().enqueueMany([{ machine: 'm', correlationKey: 'k' }, { machine: 'm' }])).rejects.toThrow(HoldfastUnreachableError)
    expect(reached).toHaveLength(1)
  })
})

describe('what may have been carried out is not', () => {
  test.each([
    ['an enqueue', () => client().enqueue('m')],
    ['a signal', () => client().signal({ id: '1' }, 'go')],
  ])('%s without a key after a lost connection, 502, 503, 504', async (_name, send) => {
    acts = [vanish]
    await expect(send()).rejects.toThrow(/got no answer.*Whether it was carried out is unknown/)
    expect(reached).toHaveLength(1)
    for (const status of [502, 503, 504]) {
      reached = []
      acts = [refuse(status, 'no_database_capacity'), made]
      await expect(send()).rejects.toMatchObject({ name: 'HoldfastApiError', status })
      expect(reached).toHaveLength(1)
    }
  })

  test('but a 429, which was refused before anything was done', async () => {
    acts = [refuse(429, 'rate_limited'), made]
    expect(await client().enqueue('m')).toEqual({ id: '1', created: true })
    expect(reached).toHaveLength(2)
  })
})

test('a refusal is final', async () => {
  acts = [refuse(404, 'not_found')]
  await expect(client().get('5')).rejects.toMatchObject({ code: 'not_found', status: 404, message: 'not_found: try again' })
  expect(reached).toEqual(['GET /v1/instances/5'])
})

test('it gives up after so many further tries and says what the last answer was', async () => {
  acts = [refuse(503, 'no_database_capacity')]
  await expect(client(2).queues()).rejects.toMatchObject({ code: 'no_database_capacity', status: 503 })
  expect(reached).toHaveLength(3)
  reached = []
  acts = [vanish]
  await expect(client(1).queues()).rejects.toThrow(/GET http:\/\/127.*got no answer/)
  expect(reached).toHaveLength(2)
  reached = []
  await expect(client(0).queues()).rejects.toThrow(HoldfastUnreachableError)
  expect(reached).toHaveLength(1)
})

test('an answer that is not ours is told as it is', async () => {
  acts = [answer(200, '<html>a proxy</html>')]
  await expect(client().queues()).rejects.toThrow(/not JSON: <html>a proxy/)
  acts = [answer(400, { oops: true })]
  await expect(client().queues()).rejects.toThrow(HoldfastApiError)
})

test('a server that says nothing is given up on in time', async () => {
  acts = [() => undefined]
  await expect(client(0, 80).queues()).rejects.toThrow(/got no answer.*(timeout|aborted)/i)
})

test('a refused connection is tried again, whatever the request is: it has carried nothing', async () => {
  acts = [made]
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  const sending = client(8).enqueue('m')
  const error = await client(0)
    .enqueue('m')
    .catch((thrown: unknown) => thrown)
  expect(String(error)).toMatch(/ECONNREFUSED.*Is the API running there/)
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  expect(await sending).toEqual({ id: '1', created: true })
})

describe('waitFor', () => {
  const parked = { id: '1', status: 'runnable', machine: 'm' }
  const notYet = answer(408, { error: { code: 'not_settled', message: 'x' }, instance: parked })

  test('polls on and waits for an API that goes away and comes back', async () => {
    acts = [notYet, vanish, vanish, refuse(503, 'no_database_capacity'), notYet, answer(200, { ...parked, status: 'done', result: 5 })]
    expect(await client(0).waitFor('1', { timeoutMs: 20_000 })).toBe(5)
    expect(reached).toEqual(Array.from({ length: 6 }, () => 'POST /v1/instances/1/wait'))
  })

  test('does not wait for one that never was there', async () => {
    acts = [vanish]
    await expect(client(0).waitFor('1')).rejects.toThrow(HoldfastUnreachableError)
    expect(reached).toHaveLength(1)
  })
})
