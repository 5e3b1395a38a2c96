import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type Answer, ApiUnderTest, refused } from './api-under-test.ts'

// Every case of bad input: its status and code, nothing changed, nothing logged as our fault, and the next request served as before.
let api: ApiUnderTest
let live: string
beforeAll(async () => {
  api = await ApiUnderTest.start()
  await api.declare('m')
})
afterAll(() => api[Symbol.asyncDispose]())
beforeEach(async () => {
  live = await api.enqueue()
})

const big = (bytes: number): string => 'x'.repeat(bytes)
const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth)

async function refuses(status: number, code: string, ask: () => Promise<Answer>): Promise<string> {
  const before = await api.rows()
  const message = refused(await ask(), status, code)
  expect(await api.rows()).toEqual(before)
  expect(api.log.filter((line) => line.includes('"level":"error"'))).toEqual([])
  expect((await api.api('GET', `/v1/instances/${live}`)).status).toBe(200)
  return message
}

const json = { 'content-type': 'application/json' }
interface Case {
  readonly raw: string | Uint8Array<ArrayBuffer>
  readonly headers?: Record<string, string>
}

describe('a body that is no strict JSON object', () => {
  test.each<[string, Case]>([
    ['empty', { raw: ' ' }],
    ['broken', { raw: '{"machine":' }],
    ['an array', { raw: '[{"machine":"m"}]' }],
    ['a string', { raw: '"m"' }],
    ['null', { raw: 'null' }],
    ['two objects', { raw: '{"machine":"m"}{"machine":"m"}' }],
    ['not UTF-8', { raw: new Uint8Array([...new TextEncoder().encode('{"machine":"'), 0xff, ...new TextEncoder().encode('"}')]) }],
    ['with a byte order mark', { raw: '\ufeff{"machine":"m"}' }],
    ['a doubled key', { raw: '{"machine":"m","machine":"n"}' }],
    ['a doubled key, escaped', { raw: '{"machine":"m","state":{"a":1,"\\u0061":2}}' }],
    ['NUL in a state', { raw: '{"machine":"m","state":{"a":"\\u0000"}}' }],
    ['NUL in a key of a state', { raw: '{"machine":"m","state":{"a\\u0000":1}}' }],
    ['NUL in a name', { raw: '{"machine":"m\\u0000"}' }],
    ['an unpaired surrogate', { raw: '{"machine":"m","state":"\\ud83d"}' }],
    ['nested too deep', { raw: `{"machine":"m","state":${nested(128)}}` }],
    ['nested far too deep', { raw: `{"machine":"m","state":${nested(100_000)}}` }],
    ['an unknown field', { raw: '{"machine":"m","delay":5}' }],
    ['an unknown field named __proto__', { raw: '{"machine":"m","__proto__":{"state":1}}' }],
    ['a form', { raw: 'machine=m', headers: { 'content-type': 'application/x-www-form-urlencoded' } }],
    ['plain text', { raw: '{"machine":"m"}', headers: { 'content-type': 'text/plain' } }],
    ['XML', { raw: '<machine>m</machine>', headers: { 'content-type': 'application/xml' } }],
  ])('%s', async (_name, { raw, headers = json }) => {
    expect(await refuses(400, 'invalid_body', () => api.api('POST', '/v1/instances', { raw, headers }))).not.toMatch(/internal|stack/)
    await refuses(400, 'invalid_body', () => api.api('POST', '/v1/instances/batch', { raw, headers }))
    await refuses(400, 'invalid_body', () => api.api('POST', '/v1/signals', { raw, headers }))
    await refuses(400, 'invalid_body', () => api.manage('POST', '/manage/v1/projects', { raw, headers }))
  })

  test('none at all', async () => {
    expect(await refuses(400, 'invalid_body', () => api.api('POST', '/v1/instances'))).toMatch(/no body/)
    expect(await refuses(400, 'invalid_body', () => api.api('POST', `/v1/instances/${live}/wait`))).toMatch(/no body/)
  })
})

describe('an instance that does not fit', () => {
  test.each<[string, object, RegExp]>([
    ['no machine', { machine: undefined }, /machine/],
    ['a machine of the wrong type', { machine: 5 }, /machine/],
    ['an empty machine', { machine: '' }, /machine/],
    ['a machine with a long name', { machine: big(201) }, /machine/],
    ['a fractional priority', { priority: 1.5 }, /priority/],
    ['a priority as text', { priority: '1' }, /priority/],
    ['a priority over smallint', { priority: 32_768 }, /priority/],
    ['version 0', { version: 0 }, /version/],
    ['a version over integer', { version: 2_147_483_648 }, /version/],
    ['a negative delay', { delay_ms: -1 }, /delay_ms/],
    ['a delay over a hundred years', { delay_ms: 3_155_760_000_001 }, /delay_ms/],
    ['a delay that no integer holds', { delay_ms: 1e300 }, /delay_ms/],
    ['an instant that is none', { eligible_at: 'tomorrow' }, /eligible_at/],
    ['30 February', { eligible_at: '2027-02-30T00:00:00Z' }, /eligible_at/],
    ['the year 0', { eligible_at: '0000-01-01T00:00:00Z' }, /eligible_at/],
    ['an offset of 16 hours', { eligible_at: '2027-01-01T00:00:00+16:00' }, /eligible_at/],
    ['a local time', { eligible_at: '2027-01-01T00:00:00' }, /eligible_at/],
    ['delay and instant', { delay_ms: 1, eligible_at: '2027-01-01T00:00:00Z' }, /not both/],
    ['state and input', { state: {}, input: {} }, /not both/],
    ['an empty correlation key', { correlation_key: '' }, /correlation_key/],
    ['a long correlation key', { correlation_key: big(501) }, /correlation_key/],
    ['a scope that is live', { correlation_key: 'k', correlation_scope: ['runnable'] }, /correlation_scope/],
    ['a scope of its own invention', { correlation_key: 'k', correlation_scope: ['over'] }, /correlation_scope/],
    ['a long concurrency key', { concurrency_key: big(501) }, /concurrency_key/],
    ['an empty queue', { queue: '' }, /queue/],
  ])('%s', async (_name, fields, named) => {
    const body = { machine: 'm', ...fields }
    expect(await refuses(400, 'invalid_instance', () => api.api('POST', '/v1/instances', { body }))).toMatch(named)
    expect(await refuses(400, 'invalid_instance', () => api.api('POST', '/v1/instances/batch', { body: { instances: [body] } }))).toMatch(
      named,
    )
  })

  test('a number that no double holds is refused, not turned into null', async () => {
    const raw = '{"machine":"m","state":{"n":1e400}}'
    expect(await refuses(400, 'invalid_instance', () => api.api('POST', '/v1/instances', { raw }))).toMatch(/state/)
  })

  test('a machine that nobody knows', async () => {
    expect(await refuses(404, 'unknown_machine', () => api.api('POST', '/v1/instances', { body: { machine: 'nobody' } }))).toMatch(/nobody/)
  })
})

describe('a signal that does not fit', () => {
  test.each<[string, object, RegExp]>([
    ['no name', { name: undefined }, /name/],
    ['an empty name', { name: '' }, /name/],
    ['a long name', { name: big(201) }, /name/],
    ['no target', { id: undefined }, /exactly one/],
    ['two targets', { correlation_key: 'k' }, /exactly one/],
    ['an id as a number', { id: 5 }, /id/],
    ['an id that is none', { id: 'abc' }, /id/],
    ['an id over bigint', { id: '9223372036854775808' }, /id/],
    ['an empty dedup key', { dedup_key: '' }, /dedup_key/],
    ['a long dedup key', { dedup_key: big(501) }, /dedup_key/],
  ])('%s', async (_name, fields, named) => {
    expect(
      await refuses(400, 'invalid_signal', () => api.api('POST', '/v1/signals', { body: { id: live, name: 'go', ...fields } })),
    ).toMatch(named)
  })

  test('to a finished instance', async () => {
    const id = await api.enqueue()
    await api.finish(id)
    expect(await refuses(404, 'not_found', () => api.api('POST', '/v1/signals', { body: { id, name: 'go' } }))).toMatch(/has ended/)
  })
})

describe.each(['cancel', 'retry'])('a bulk %s that does not fit', (verb) => {
  test.each<[string, object, RegExp]>([
    ['a status of its own invention', { filter: { status: 'over' } }, /status/],
    ['a parent that is no id', { filter: { parent_id: 5 } }, /parent_id/],
    ['an empty queue', { filter: { queue: '' } }, /queue/],
    ['a limit of 0', { all: true, limit: 0 }, /limit/],
    ['a limit over a thousand', { all: true, limit: 1_001 }, /limit/],
    ['all: false', { all: false }, /all/],
    ['a place to go on that is no id', { all: true, after: 'x' }, /after/],
    ['a long reason', { all: true, reason: big(2_001) }, /reason/],
  ])('%s', async (_name, body, named) => {
    expect(await refuses(400, 'invalid_instance', () => api.api('POST', `/v1/instances/${verb}`, { body }))).toMatch(named)
  })

  test('of one instance: an unknown field, a long reason', async () => {
    const path = `/v1/instances/${live}/${verb}`
    await refuses(400, 'invalid_body', () => api.api('POST', path, { body: { why: 'x' } }))
    await refuses(400, 'invalid_body', () => api.api('POST', `/v1/instances/${verb}`, { body: { filter: { name: 'm' } } }))
    expect(await refuses(400, 'invalid_instance', () => api.api('POST', path, { body: { reason: big(2_001) } }))).toMatch(/reason/)
  })
})

describe('too large', () => {
  test('a state of 2 MB', async () => {
    const body = { machine: 'm', state: big(2_000_000) }
    expect(await refuses(413, 'payload_too_large', () => api.api('POST', '/v1/instances', { body }))).toMatch(/too large/)
  })
  test('a state over 512 KiB in a body that fits', async () => {
    const body = { machine: 'm', state: big(524_288) }
    expect(await refuses(413, 'payload_too_large', () => api.api('POST', '/v1/instances', { body }))).toMatch(/state is 524290 bytes/)
    await refuses(413, 'payload_too_large', () => api.api('POST', '/v1/instances/batch', { body: { instances: [{ machine: 'm' }, body] } }))
    expect((await api.api('POST', '/v1/instances', { body: { machine: 'm', state: big(524_286) } })).status).toBe(201)
  })
  test('counted in bytes, not in characters', async () => {
    const body = { machine: 'm', state: '漢'.repeat(180_000) }
    expect(await refuses(413, 'payload_too_large', () => api.api('POST', '/v1/instances', { body }))).toMatch(/540002 bytes/)
  })
  test('a payload', async () => {
    const body = { id: live, name: 'go', payload: big(524_288) }
    expect(await refuses(413, 'payload_too_large', () => api.api('POST', '/v1/signals', { body }))).toMatch(/payload/)
    await refuses(413, 'payload_too_large', () => api.api('POST', '/v1/signals', { body: { ...body, payload: big(1_100_000) } }))
  })
  test('a batch over 16 MiB; one of 2 MB is none', async () => {
    const instances = Array.from({ length: 40 }, () => ({ machine: 'm', state: big(450_000) }))
    await refuses(413, 'payload_too_large', () => api.api('POST', '/v1/instances/batch', { body: { instances } }))
    const { status } = await api.api('POST', '/v1/instances/batch', { body: { instances: instances.slice(0, 5) } })
    expect(status).toBe(201)
  })
  test('on the management listener', async () => {
    const body = { name: big(1_100_000) }
    expect(await refuses(413, 'payload_too_large', () => api.manage('POST', '/manage/v1/projects', { body }))).toMatch(/too large/)
  })
})

test('an error that we did not foresee is logged under the id that the client is told, and tells it nothing else', async () => {
  await using own = await ApiUnderTest.start()
  await own.query('ALTER TABLE holdfast.instance ADD CONSTRAINT for_this_test CHECK (machine <> $$trap$$)')
  const message = refused(await own.api('POST', '/v1/instances', { body: { machine: 'trap' } }), 500, 'internal')
  const [, id = 'none'] = /under (\S+)$/.exec(message) ?? []
  expect(message).not.toMatch(/for_this_test|constraint/)
  expect(own.log.filter((line) => line.includes(id) && line.includes('for_this_test'))).toHaveLength(1)
})

describe('a path that names nothing', () => {
  test.each(['/v1/instances/%E0%A4%A', `/v1/instances/${'9'.repeat(2_000)}`, '/v1/nowhere', '/v1/instances/1/elsewhere'])(
    '%s',
    async (path) => {
      expect(await refuses(404, 'not_found', () => api.api('GET', path))).toMatch(/^there is no/)
    },
  )
})
