// The bodies of the SQL functions live in a migration and cannot be made of the statements of this package. So one table of cases goes through the
// TypeScript that the HTTP API and the client use, through holdfast.enqueue, and through holdfast.enqueue_many, and the rows and refusals are compared.
import {
  type ErrorCode,
  EnqueueRequest,
  HoldfastError,
  Limits,
  MAX_DURATION_MS,
  MAX_JSON_BYTES,
  MAX_JSON_DEPTH,
  NotStorableError,
  type ProjectId,
  SignalRequest,
  SqlStates,
  storableJson,
} from '@holdfast/contracts'
import { declareMachines, deliverSignalById, deliverSignalByKey, insertInstances, putRateLimit } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { newProject, present } from './engine-rows.ts'

/** As a caller of the API writes it; the fields that TypeScript would not let through are the point of half the cases. */
type Wire = Record<string, unknown>
type Batch = readonly Wire[]
interface Answer {
  /** Per instance: whether it was created, and otherwise the place, counted over the whole case, of the one that occupies its key. */
  readonly created?: readonly (true | number)[]
  readonly refused?: ErrorCode
}
/** A way in: inserts one batch, answering ids in its order and which of them are new; throws a refusal. */
type Way = (db: Db, project: string, projectId: ProjectId, batch: Batch) => Promise<{ ids: readonly string[]; created: readonly boolean[] }>

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(() => database[Symbol.asyncDispose]())

const typescript: Way = async (db, _project, projectId, batch) => {
  const instances = batch.map(({ rate_limit: limit, ...wire }) => {
    const parsed = EnqueueRequest.safeParse(wire)
    if (!parsed.success) throw new HoldfastError('invalid_instance', parsed.error.message)
    const body = parsed.data
    const rate = limit as { name: string; partition?: string; weight?: number } | undefined
    const state = body.input === undefined ? body.state : body.input
    return {
      machine: body.machine,
      version: body.version,
      queue: body.queue,
      state: storableJson(state === undefined ? {} : state, 'state'),
      priority: body.priority,
      delayMs: body.delay_ms,
      eligibleAt: body.eligible_at,
      correlationKey: body.correlation_key,
      correlationScope: body.correlation_scope,
      concurrencyKey: body.concurrency_key,
      rateKey: rate?.partition === undefined ? rate?.name : `${rate.name}:${rate.partition}`,
      rateWeight: rate?.weight,
    }
  })
  return insertInstances(db, { projectId, instances, declaredOnly: true })
}

const enqueueMany: Way = async (db, project, _projectId, batch) => {
  const { rows } = await sql<{ place: number; id: string; created: boolean }>`
    SELECT * FROM holdfast.enqueue_many(${project}, ${JSON.stringify(batch)}::jsonb)`.execute(db)
  expect(rows.map(({ place }) => place)).toEqual(batch.map((_instance, place) => place))
  return { ids: rows.map(({ id }) => id), created: rows.map(({ created }) => created) }
}

/** One call for each; the batch is a transaction, so that a refusal takes the others back too. */
const enqueueEach: Way = (db, project, _projectId, batch) =>
  db.transaction().execute(async (trx) => {
    const answers: { id: string; created: boolean }[] = []
    for (const wire of batch) {
      const limit = wire['rate_limit'] as { name: string; partition?: string; weight?: number } | undefined
      const delay = wire['delay_ms'] === undefined ? sql`NULL` : sql`${`${wire['delay_ms'] as number} ms`}::interval`
      const state = 'input' in wire ? wire['input'] : wire['state']
      const { rows } = await sql<{ id: string; created: boolean }>`SELECT * FROM holdfast.enqueue(
        project => ${project}, machine => ${wire['machine'] ?? null}, version => ${wire['version'] ?? null}::integer, queue => ${wire['queue'] ?? null},
        state => ${'input' in wire || 'state' in wire ? JSON.stringify(state) : null}::jsonb, priority => ${wire['priority'] ?? null}::integer,
        delay => ${delay}, eligible_at => ${wire['eligible_at'] ?? null}::timestamptz, correlation_key => ${wire['correlation_key'] ?? null},
        correlation_scope => ${(wire['correlation_scope'] as string[] | undefined) ?? null}::text[], concurrency_key => ${wire['concurrency_key'] ?? null},
        rate_limit => ${limit === undefined ? null : limit.partition === undefined ? limit.name : `${limit.name}:${limit.partition}`},
        rate_weight => ${limit?.weight ?? null}::integer)`.execute(trx)
      answers.push(present(rows[0]))
    }
    return { ids: answers.map(({ id }) => id), created: answers.map(({ created }) => created) }
  })

const codeOf = (error: unknown): ErrorCode => {
  if (error instanceof HoldfastError) return error.code
  if (error instanceof NotStorableError) return error.reason === 'too_large' ? 'payload_too_large' : 'invalid_instance'
  const found = Object.entries(SqlStates).find(([, state]) => state === (error as { code?: string }).code)
  if (found === undefined) throw error
  return found[0] as ErrorCode
}

/** What a case leaves behind in its project, without what differs from run to run. */
async function run(way: Way, name: string, batches: readonly Batch[]): Promise<{ answers: Answer[]; rows: unknown[] }> {
  const { db } = database
  const projectId = await newProject(db, name)
  await putRateLimit(db, { projectId, name: 'mail', rate: 10, periodMs: 1_000, burst: 5, shards: 1 })
  const places = new Map<string, number>()
  const answers: Answer[] = []
  for (const batch of batches) {
    try {
      const { ids, created } = await way(db, name, projectId, batch)
      for (const [index, id] of ids.entries()) if (created[index] === true) places.set(id, places.size)
      answers.push({ created: ids.map((id, index) => created[index] === true || present(places.get(id))) })
    } catch (error) {
      answers.push({ refused: codeOf(error) })
    }
  }
  const { rows } = await sql`
    SELECT machine, version, step, status, queue, priority, state, correlation_key, correlation_scope, correlation_guard, concurrency_key, rate_key,
      rate_weight, traceparent, attempt, parent_id, awaits, claim_epoch,
      CASE WHEN eligible_at BETWEEN inserted_at - interval '101 years' AND inserted_at + interval '101 years' AND extract(second FROM eligible_at) <> 7
        THEN (eligible_at - inserted_at)::text ELSE eligible_at::text END AS eligible
    FROM holdfast.instance WHERE project_id = ${projectId}::bigint ORDER BY id`.execute(db)
  return { answers, rows }
}

const nested = (levels: number): unknown => JSON.parse('['.repeat(levels) + ']'.repeat(levels)) as unknown
/** A state whose JSON has so many bytes; of many parts, because jsonb shows itself with blanks that do not count. */
const sized = (bytes: number): unknown => {
  const parts = Array.from({ length: 5_000 }, () => 1)
  const filler = bytes - JSON.stringify([...parts, '']).length
  return [...parts, 'x'.repeat(filler)]
}

const cases: Record<string, readonly Batch[]> = {
  'a name alone': [[{ machine: 'm' }]],
  'every field': [
    [
      {
        machine: 'm',
        version: 2,
        queue: 'mail',
        state: { a: [1, 'ü', null], __proto__: { b: 1 } },
        priority: -5,
        delay_ms: 90_061_001,
        correlation_key: 'order-1',
        correlation_scope: ['done', 'failed'],
        concurrency_key: 'customer:7',
        rate_limit: { name: 'mail', partition: 'acme', weight: 5 },
      },
    ],
  ],
  'queue and version of the newest declaration': [[{ machine: 'm' }, { machine: 'm', version: 1 }, { machine: 'm', queue: 'other' }]],
  'input instead of state': [[{ machine: 'm', input: { to: 'ada' } }]],
  'states that are no objects': [
    [
      { machine: 'm', state: null },
      { machine: 'm', state: 0 },
      { machine: 'm', state: '' },
      { machine: 'm', state: [] },
      { machine: 'm', input: null },
    ],
  ],
  'a delay of nothing, and the longest': [
    [
      { machine: 'm', delay_ms: 0 },
      { machine: 'm', delay_ms: MAX_DURATION_MS },
    ],
  ],
  'a delay too long': [[{ machine: 'm', delay_ms: MAX_DURATION_MS + 1 }]],
  'a negative delay': [[{ machine: 'm', delay_ms: -1 }]],
  'an instant, in the past and in the future': [
    [
      { machine: 'm', eligible_at: '2001-02-03T04:05:07Z' },
      { machine: 'm', eligible_at: '2999-02-03T04:05:07.123456+05:30' },
    ],
  ],
  'delay and instant': [[{ machine: 'm', delay_ms: 1, eligible_at: '2001-02-03T04:05:07Z' }]],
  'a key that is occupied answers its occupant': [
    [{ machine: 'm', correlation_key: 'k' }],
    [{ machine: 'm' }, { machine: 'm', correlation_key: 'k', state: { other: true } }, { machine: 'm', correlation_key: 'l' }],
  ],
  'a key twice in one batch': [
    [
      { machine: 'm', correlation_key: 'z' },
      { machine: 'm', correlation_key: 'a' },
      { machine: 'm', correlation_key: 'z' },
      { machine: 'm' },
    ],
  ],
  'one bad instance refuses its batch': [[{ machine: 'm' }, { machine: 'm', priority: 1e6 }], [{ machine: 'm' }]],
  'a machine that nobody has declared': [[{ machine: 'm' }, { machine: 'typo' }]],
  'a version that nobody has declared': [[{ machine: 'm', version: 9 }]],
  'names at their limits': [[{ machine: 'm', queue: 'q'.repeat(Limits.nameLength) }]],
  'an empty machine': [[{ machine: '' }]],
  'a machine too long': [[{ machine: 'x'.repeat(Limits.nameLength + 1) }]],
  'no machine': [[{ queue: 'q' }]],
  'an empty queue': [[{ machine: 'm', queue: '' }]],
  'a queue too long': [[{ machine: 'm', queue: 'x'.repeat(Limits.nameLength + 1) }]],
  'keys at their limits': [
    [{ machine: 'm', correlation_key: 'k'.repeat(Limits.keyLength), concurrency_key: 'ü'.repeat(Limits.keyLength) }],
  ],
  'an empty correlation key': [[{ machine: 'm', correlation_key: '' }]],
  'a correlation key too long': [[{ machine: 'm', correlation_key: 'x'.repeat(Limits.keyLength + 1) }]],
  'an empty concurrency key': [[{ machine: 'm', concurrency_key: '' }]],
  'a concurrency key too long': [[{ machine: 'm', concurrency_key: 'x'.repeat(Limits.keyLength + 1) }]],
  'priorities at their limits': [
    [
      { machine: 'm', priority: Limits.priorityMin },
      { machine: 'm', priority: Limits.priorityMax },
    ],
  ],
  'a priority too low': [[{ machine: 'm', priority: Limits.priorityMin - 1 }]],
  'a priority too high': [[{ machine: 'm', priority: Limits.priorityMax + 1 }]],
  'version 0': [[{ machine: 'm', version: 0 }]],
  'a scope of every end': [[{ machine: 'm', correlation_key: 'k', correlation_scope: ['done', 'failed', 'cancelled'] }]],
  'a scope of nothing': [[{ machine: 'm', correlation_key: 'k', correlation_scope: [] }]],
  'a scope that is no end': [[{ machine: 'm', correlation_key: 'k', correlation_scope: ['runnable'] }]],
  'a scope of four': [[{ machine: 'm', correlation_scope: ['done', 'done', 'done', 'done'] }]],
  'a rate limit without partition and weight': [[{ machine: 'm', rate_limit: { name: 'mail' } }]],
  'a rate limit that the project does not have': [[{ machine: 'm' }, { machine: 'm', rate_limit: { name: 'post' } }]],
  'a weight above the burst': [[{ machine: 'm', rate_limit: { name: 'mail', weight: 6 } }]],
  'a state as large as may be': [[{ machine: 'm', state: sized(MAX_JSON_BYTES) }]],
  'a state too large by a byte': [[{ machine: 'm', state: sized(MAX_JSON_BYTES + 1) }]],
  'a state of many bytes in few characters': [[{ machine: 'm', state: 'ü'.repeat(MAX_JSON_BYTES / 2) }]],
  'a state as deep as may be': [[{ machine: 'm', state: nested(MAX_JSON_DEPTH) }]],
  'a state too deep by a level': [[{ machine: 'm', state: nested(MAX_JSON_DEPTH + 1) }]],
  'a deep state in objects': [[{ machine: 'm', state: { a: nested(MAX_JSON_DEPTH) } }]],
  'the largest double': [[{ machine: 'm', state: [Number.MAX_VALUE, -Number.MAX_VALUE, 5e-324] }]],
}

/** Only JSON can say these. */
const jsonCases: Record<string, readonly Batch[]> = {
  'state and input': [[{ machine: 'm', state: {}, input: {} }]],
  'an unknown field': [[{ machine: 'm', delay: 5 }]],
  'a field with a dot in its name': [[{ machine: 'm', 'rate_limit.name': 'mail' }]],
  'a number for a text': [[{ machine: 7 }]],
  'a text for a number': [[{ machine: 'm', priority: '1' }]],
  'a broken number': [[{ machine: 'm', priority: 1.5 }]],
  'a version beyond an integer': [[{ machine: 'm', version: 2_147_483_648 }]],
  'a scope that is no array': [[{ machine: 'm', correlation_scope: 'done' }]],
  'a scope of numbers': [[{ machine: 'm', correlation_scope: [1] }]],
  'an instant without an offset': [[{ machine: 'm', eligible_at: '2001-02-03T04:05:06' }]],
  'an instant that is none': [[{ machine: 'm', eligible_at: 'tomorrow' }]],
  'a day that no month has': [[{ machine: 'm', eligible_at: '2001-02-30T04:05:06Z' }]],
  'an instance that is an array': [[[] as unknown as Wire]],
}

let count = 0
beforeEach(async () => {
  count += 1
  await declareMachines(database.db, {
    machines: [
      { name: 'm', version: 1, queue: 'old', maxReclaims: 5 },
      { name: 'm', version: 2, queue: 'new', maxReclaims: 5 },
    ],
  })
})

describe('enqueue', () => {
  test.each(Object.keys(cases))('%s', async (name) => {
    const batches = cases[name] ?? []
    const expected = await run(typescript, `ts-${count}`, batches)
    expect(expected.answers).toHaveLength(batches.length)
    expect(await run(enqueueMany, `many-${count}`, batches)).toEqual(expected)
    expect(await run(enqueueEach, `each-${count}`, batches)).toEqual(expected)
  })

  test.each(Object.keys(jsonCases))('as JSON: %s', async (name) => {
    const batches = jsonCases[name] ?? []
    const expected = await run(typescript, `ts-${count}`, batches)
    expect(expected.answers).toEqual([{ refused: 'invalid_instance' }])
    expect(await run(enqueueMany, `many-${count}`, batches)).toEqual(expected)
  })

  test('before any scheduler has declared a machine, every name is accepted', async () => {
    await sql`DELETE FROM holdfast.machine`.execute(database.db)
    const batches = [[{ machine: 'not-yet' }, { machine: 'm', version: 7 }]]
    const expected = await run(typescript, `ts-${count}`, batches)
    expect(expected.answers).toEqual([{ created: [true, true] }])
    expect(await run(enqueueMany, `many-${count}`, batches)).toEqual(expected)
    expect(await run(enqueueEach, `each-${count}`, batches)).toEqual(expected)
  })
})

describe('signal', () => {
  /** By the key of the instance in its test: one that waits for `go`, one that has ended and keeps its key. */
  type Signal = Wire & { name: string; correlation_key?: string; id?: string }
  type Send = (db: Db, project: string, projectId: ProjectId, signal: Signal) => Promise<{ delivered: boolean; duplicate: boolean }>

  const statement: Send = async (db, _project, projectId, wire) => {
    const parsed = SignalRequest.safeParse(wire)
    if (!parsed.success) throw new HoldfastError('invalid_signal', parsed.error.message)
    const { id, correlation_key: correlationKey, name, payload, dedup_key: dedupKey } = parsed.data
    const body = { projectId, name, payload: storableJson(payload === undefined ? {} : payload, 'payload'), dedupKey }
    const [row] =
      id === undefined
        ? await deliverSignalByKey(db, { ...body, correlationKey: correlationKey ?? '' })
        : await deliverSignalById(db, { ...body, id })
    if (row?.target_id == null) throw new HoldfastError('not_found', 'no live target')
    return { delivered: true, duplicate: row.duplicate }
  }
  const viaFunction: Send = async (db, project, _projectId, wire) => {
    const { rows } = await sql<{ delivered: boolean; duplicate: boolean }>`SELECT * FROM holdfast.signal(
      ${project}, ${wire.name}, ${'payload' in wire ? JSON.stringify(wire['payload']) : null}::jsonb, id => ${wire.id ?? null}::bigint,
      correlation_key => ${wire.correlation_key ?? null}, dedup_key => ${wire['dedup_key'] ?? null})`.execute(db)
    return present(rows[0])
  }

  const signals: Record<string, readonly Signal[]> = {
    'one that is waited for': [{ name: 'go', correlation_key: 'waits', payload: { amount: 1 } }],
    'one that is not waited for': [{ name: 'other', correlation_key: 'waits' }],
    'payloads that are no objects': [
      { name: 'other', correlation_key: 'waits', payload: null },
      { name: 'other', correlation_key: 'waits', payload: [1] },
    ],
    'delivered again': [
      { name: 'go', correlation_key: 'waits', dedup_key: 'd' },
      { name: 'go', correlation_key: 'waits', dedup_key: 'd', payload: { other: true } },
      { name: 'go', correlation_key: 'waits', dedup_key: 'e' },
    ],
    'to one that executes': [{ name: 'go', correlation_key: 'executes' }],
    'to one that has ended and keeps its key': [{ name: 'go', correlation_key: 'ended', dedup_key: 'd' }],
    'to a key that nobody has': [{ name: 'go', correlation_key: 'nobody' }],
    'to an id that nobody has': [{ name: 'go', id: '9223372036854775807' }],
    'without a target': [{ name: 'go' }],
    'with two targets': [{ name: 'go', id: '1', correlation_key: 'waits' }],
    'without a name': [{ name: '', correlation_key: 'waits' }],
    'with a name too long': [{ name: 'x'.repeat(Limits.nameLength + 1), correlation_key: 'waits' }],
    'with an empty key': [{ name: 'go', correlation_key: '' }],
    'with an empty dedup key': [{ name: 'go', correlation_key: 'waits', dedup_key: '' }],
    'with a dedup key too long': [{ name: 'go', correlation_key: 'waits', dedup_key: 'x'.repeat(Limits.keyLength + 1) }],
    'with a payload too large': [{ name: 'go', correlation_key: 'waits', payload: sized(MAX_JSON_BYTES + 1) }],
    'with a payload too deep': [{ name: 'go', correlation_key: 'waits', payload: nested(MAX_JSON_DEPTH + 1) }],
  }

  async function send(
    way: Send,
    name: string,
    sent: readonly Signal[],
  ): Promise<{ answers: unknown[]; instances: unknown[]; inbox: unknown[] }> {
    const { db } = database
    const projectId = await newProject(db, name)
    await sql`INSERT INTO holdfast.instance (project_id, machine, correlation_key, correlation_scope, status, awaits, claimed_by, lease_expires_at) VALUES
      (${projectId}::bigint, 'm', 'waits', '{}', 'awaiting_signal', '{go,stop}', NULL, NULL),
      (${projectId}::bigint, 'm', 'executes', '{}', 'executing', '{go}', 'w', now()),
      (${projectId}::bigint, 'm', 'ended', '{done}', 'done', NULL, NULL, NULL)`.execute(db)
    const answers: unknown[] = []
    for (const signal of sent) {
      try {
        answers.push(await way(db, name, projectId, signal))
      } catch (error) {
        const code = codeOf(error)
        answers.push({ refused: code === 'invalid_instance' ? 'invalid_signal' : code }) // a NotStorableError does not know whose value it refuses
      }
    }
    const of = (table: 'signal' | 'signal_receipt') =>
      sql`SELECT to_jsonb(s) - '{id,target_id,inserted_at,received_at}'::text[] AS row, i.correlation_key AS key
        FROM ${sql.table(`holdfast.${table}`)} s JOIN holdfast.instance i ON i.id = s.target_id WHERE i.project_id = ${projectId}::bigint
        ORDER BY 1`.execute(db)
    const { rows: instances } =
      await sql`SELECT correlation_key, status, awaits, await_deadline, eligible_at = updated_at AS woken FROM holdfast.instance
      WHERE project_id = ${projectId}::bigint ORDER BY id`.execute(db)
    return { answers, instances, inbox: [...(await of('signal')).rows, ...(await of('signal_receipt')).rows] }
  }

  test.each(Object.keys(signals))('%s', async (name) => {
    const sent = signals[name] ?? []
    const expected = await send(statement, `ts-${count}`, sent)
    expect(await send(viaFunction, `sql-${count}`, sent)).toEqual(expected)
  })
})
