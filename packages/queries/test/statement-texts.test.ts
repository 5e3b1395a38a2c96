import {
  allStatements,
  applyOutcomes,
  claim,
  declareMachines,
  deliverSignalById,
  enqueue,
  listInstances,
  stageOutcomes,
} from '@holdfast/queries'
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import type { Db } from '@holdfast/schema'
import { testDatabase } from '@holdfast/testbed'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import { expect, test } from 'vitest'
import { writeStatements } from '../../../tools/write-statements.ts'
import { newProject, outcome } from './engine-rows.ts'

const names = [...allStatements.keys()]
const projectId = '1' as ProjectId

test('the checked-in texts are those that are sent (else: node --conditions=@holdfast/source tools/write-statements.ts)', () => {
  expect(writeStatements({ check: true })).toEqual([])
})

test.each(names)('%s begins with its name, by which it is prepared and shown', (name) => {
  const statement = allStatements.get(name)
  const { sql } = statement?.compile(statement.sample) ?? { sql: '' }
  expect(sql.startsWith(`/* ${name} */ `)).toBe(true)
  expect(name).toMatch(/^[a-z]+\.[a-z_]{1,32}$/) // connect() prepares names of up to 40 characters
})

test('no text depends on its parameters: one row or three, optional fields or none', () => {
  const bare = { machine: 'm' }
  const full = {
    machine: 'm',
    version: 2,
    queue: 'q',
    state: '{"a":1}',
    priority: 3,
    delayMs: 5,
    correlationKey: 'k',
    correlationScope: ['done', 'failed'] as const,
    concurrencyKey: 'c',
    traceparent: '00-1',
  }
  const texts = (compiled: readonly { sql: string }[]): Set<string> => new Set(compiled.map(({ sql }) => sql))

  expect(
    texts([
      enqueue.compile({ projectId, instances: [bare], declaredOnly: true }),
      enqueue.compile({ projectId, instances: [full, bare, { ...bare, eligibleAt: '2030-01-01T00:00:00Z' }], declaredOnly: false }),
    ]).size,
  ).toBe(1)
  const id = '1' as InstanceId
  expect(
    texts([
      stageOutcomes.compile({ worker: 'w', outcomes: [outcome({ instanceId: id, kind: 'done' })] }),
      stageOutcomes.compile({
        worker: 'w',
        outcomes: [
          outcome({ instanceId: id, kind: 'await_signal', step: 's', awaits: ['a'], presented: ['1', '2'], timeoutMs: 5, state: '{}' }),
          outcome({ instanceId: id, kind: 'fail' }),
          outcome({ instanceId: id, kind: 'next', step: 's', consumed: ['3'], traceparent: '00-1' }),
        ],
      }),
    ]).size,
  ).toBe(1)
  expect(
    texts([
      deliverSignalById.compile({ projectId, id, name: 'go', payload: '{}' }),
      deliverSignalById.compile({ projectId, id, name: 'go', payload: '{}', dedupKey: 'd', traceparent: '00-1' }),
    ]).size,
  ).toBe(1)
  expect(
    texts([
      listInstances.compile({ projectId, limit: 1 }),
      listInstances.compile({
        projectId,
        limit: 9,
        machine: 'm',
        status: 'done',
        queue: 'q',
        correlationKey: 'k',
        parentId: id,
        after: id,
      }),
    ]).size,
  ).toBe(1)
  const declared = { name: 'm', version: 1, queue: 'q', maxReclaims: 1 }
  expect(
    texts([
      declareMachines.compile({ machines: [declared] }),
      declareMachines.compile({ machines: [declared, { ...declared, version: 2 }] }),
    ]).size,
  ).toBe(1)
  const claimed = { queue: 'q', limit: 1, worker: 'w', leaseMs: 1, machines: ['m/1'] }
  expect(texts([claim.compile(claimed), claim.compile({ ...claimed, machines: ['a/1', 'b/2', 'c/3'] })]).size).toBe(1)
  expect(texts([applyOutcomes.compile({ afterSeq: '0', limit: 1 }), applyOutcomes.compile({ afterSeq: '9', limit: 1_000 })]).size).toBe(1)
})

/** Counts what is really sent, by standing where every statement goes out. */
class CountingClient extends pg.Client {
  static sent = 0
  override query(...args: unknown[]): never {
    if (typeof args[0] === 'string' || (typeof args[0] === 'object' && args[0] !== null && 'text' in args[0])) CountingClient.sent += 1
    return super.query(...(args as [string])) as never
  }
}

test('every statement runs on the migrated schema, and each call sends one', async () => {
  await using database = await testDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 1, Client: CountingClient })
  const db: Db = new Kysely({ dialect: new PostgresDialect({ pool }) })
  await newProject(db, 'first') // the samples speak of project 1
  await db.connection().execute(async (session) => {
    for (const [name, statement] of allStatements) {
      await session.transaction().execute(async (trx) => {
        const before = CountingClient.sent
        await statement(trx, statement.sample)
        expect(CountingClient.sent - before, `statements sent by ${name}`).toBe(1)
      })
    }
  })
  await db.destroy()
})
