import { allStatements, deliverSignalById, enqueue } from '@holdfast/queries'
import { DatabaseRoles, type Db, type Role } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { newProject } from './engine-rows.ts'
import { refusedTo, statementsOf, statementsOfDoctor } from './role-rights.ts'

const roles = Object.keys(DatabaseRoles) as Role[]
let database: TestDatabase
const sessions = new Map<Role, Db>()
beforeAll(async () => {
  database = await testDatabase()
  await newProject(database.db, 'first') // the samples speak of project 1
  for (const role of roles) sessions.set(role, database.connectAs(role, { max: 1 }))
})
afterAll(() => database[Symbol.asyncDispose]())

/** Runs it and takes it back; answers the SQLSTATE of a refusal. */
async function attempt(db: Db, run: (db: Db) => Promise<unknown>): Promise<string> {
  const trx = await db.startTransaction().execute()
  try {
    await run(trx)
    return 'allowed'
  } catch (error) {
    return (error as { code?: string }).code ?? String(error)
  } finally {
    await trx.rollback().execute()
  }
}

describe.each(roles)('%s', (role) => {
  const session = (): Db => sessions.get(role) as Db

  test('is who it says it is, and no superuser', async () => {
    const { rows } = await sql<{
      who: string
      super: string
    }>`SELECT current_user AS who, current_setting('is_superuser') AS super`.execute(session())
    expect(rows).toEqual([{ who: DatabaseRoles[role], super: 'off' }])
  })

  test.each(statementsOf[role])('may send %s', async (name) => {
    const statement = allStatements.get(name)
    if (statement === undefined) throw new Error(`role-rights.ts names ${name}, which is no statement`)
    expect(await attempt(session(), (db) => statement(db, statement.sample))).toBe('allowed')
  })

  test.each(Object.entries(refusedTo[role]))('may not %s', async (_what, text) => {
    expect(await attempt(session(), (db) => sql.raw(text).execute(db))).toBe('42501')
    // As superuser it would have run: the refusal is for want of a right, and not for a mistake in the text.
    expect(await attempt(database.db, (db) => sql.raw(text).execute(db))).not.toMatch(/^42(?!501)/)
  })
})

test('every statement is sent by some role', () => {
  const sent = new Set([...Object.values(statementsOf).flat(), ...statementsOfDoctor])
  expect([...allStatements.keys()].filter((name) => !sent.has(name))).toEqual([])
})

test('the doctor needs a login that may read everything, and nothing more', async () => {
  const { db } = database
  const name = `doctor_${crypto.randomUUID().slice(0, 8)}` // roles belong to the cluster, which other files share
  await sql.raw(`CREATE ROLE ${name} IN ROLE pg_read_all_data, pg_monitor`).execute(db)
  const as = (run: (db: Db) => Promise<unknown>) =>
    attempt(db, async (trx) => {
      await sql.raw(`SET LOCAL ROLE ${name}`).execute(trx)
      await run(trx)
    })
  for (const each of statementsOfDoctor) {
    const statement = allStatements.get(each)
    if (statement === undefined) throw new Error(`role-rights.ts names ${each}, which is no statement`)
    expect(await as((trx) => statement(trx, statement.sample)), each).toBe('allowed')
  }
  for (const text of ['DELETE FROM holdfast.outcome_quarantine', 'INSERT INTO holdfast.project (name) VALUES ($$x$$)'])
    expect(await as((trx) => sql.raw(text).execute(trx)), text).toBe('42501')
  await sql.raw(`DROP ROLE ${name}`).execute(db)
})

test('what the roles do really changes rows: rights hold on rows that exist, not only on none', async () => {
  const { db } = database
  const projectId = (await sql<{ id: string }>`SELECT id FROM holdfast.project`.execute(db)).rows[0]?.id as never
  const as = (role: Role): Db => sessions.get(role) as Db
  const run = async (role: Role, name: string, params: object): Promise<unknown[]> => {
    const statement = allStatements.get(name)
    if (statement === undefined) throw new Error(`no statement ${name}`)
    return statement(as(role), params as never)
  }
  const machines = [{ name: 'm', version: 1, queue: 'default', maxReclaims: 0 }]
  await run('scheduler', 'engine.declare_machines', { machines })
  await run('scheduler', 'engine.declare_machines', { machines })
  const claim = { queue: 'default', limit: 10, worker: 'w', leaseMs: 60_000, machines: ['m/1'] }
  const stage = (kind: string, more: object) => ({
    worker: 'w',
    outcomes: [
      {
        instanceId: '1',
        claimEpoch: '1',
        kind,
        fromStep: 's',
        attempt: 0,
        keepHistory: true,
        claimedAgoUs: 0,
        startedAgoUs: 0,
        finishedAgoUs: 0,
        ...more,
      },
    ],
  })
  const [inserted] = (await run('api', 'engine.enqueue', {
    projectId,
    declaredOnly: true,
    instances: [{ machine: 'm', correlationKey: 'k' }],
  })) as { ids: string[] }[]
  const id = inserted?.ids[0]
  expect(await run('scheduler', 'engine.claim', claim)).toHaveLength(1)
  expect(await run('scheduler', 'engine.heartbeat', { ids: [id], epochs: ['1'], leaseMs: 1_000 })).toEqual([])
  expect(
    await run(
      'scheduler',
      'engine.stage_outcomes',
      stage('await_signal', { instanceId: id, step: 'end', awaits: ['go'], timeoutMs: 60_000 }),
    ),
  ).toHaveLength(1)
  expect(await run('flusher', 'engine.apply_outcomes', { afterSeq: '0', limit: 10 })).toMatchObject([{ applied: 1, parked: [id] }])
  const signal = { projectId, correlationKey: 'k', name: 'go', payload: '{}', dedupKey: 'd' }
  expect(await run('api', 'engine.deliver_signal_by_key', signal)).toMatchObject([{ target_id: id, queue: 'default' }])
  expect(await run('api', 'engine.deliver_signal_by_key', signal)).toMatchObject([{ duplicate: true }])
  expect(await run('scheduler', 'engine.claim', claim)).toHaveLength(1)
  expect(await run('scheduler', 'engine.release_claims', { ids: [id], epochs: ['2'] })).toHaveLength(1)
  expect(await run('scheduler', 'engine.claim', claim)).toHaveLength(1)
  await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second'`.execute(db)
  expect(await run('reaper', 'engine.reap_expired', { limit: 10, defaultMaxReclaims: 5 })).toMatchObject([{ status: 'failed' }])
  expect(await run('reaper', 'engine.delete_finished', { retentionMs: -1_000, limit: 10 })).toEqual([{ count: 1 }])
})

test('a role of a developer that is granted holdfast_enqueue may enqueue and signal, and nothing else', async () => {
  const { db } = database
  const name = `app_${crypto.randomUUID().slice(0, 8)}` // roles belong to the cluster, which other files share
  await sql.raw(`CREATE ROLE ${name} IN ROLE holdfast_enqueue`).execute(db)
  const as = (run: (db: Db) => Promise<unknown>) =>
    attempt(db, async (trx) => {
      await sql.raw(`SET LOCAL ROLE ${name}`).execute(trx)
      await run(trx)
    })
  const projectId = '1' as never
  expect(
    await as(async (trx) => {
      const [row] = await enqueue(trx, { projectId, declaredOnly: false, instances: [{ machine: 'm', correlationKey: 'k2' }] })
      const id = row?.ids?.[0] as never
      const sent = await deliverSignalById(trx, { projectId, id, name: 'go', payload: '{}', dedupKey: 'd' })
      if (sent[0]?.target_id !== id) throw new Error('not delivered')
    }),
  ).toBe('allowed')
  for (const text of [
    'SELECT FROM holdfast.api_token',
    'DELETE FROM holdfast.instance',
    `UPDATE holdfast.instance SET state = '{}'`,
    'SELECT FROM holdfast.outcome',
  ]) {
    expect(await as((trx) => sql.raw(text).execute(trx)), `the right to ${text}`).toBe('42501')
  }
  await sql.raw(`DROP ROLE ${name}`).execute(db)
})

test('nothing is granted to everybody', async () => {
  const { rows } = await sql`SELECT c.relname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
    WHERE c.relnamespace = 'holdfast'::regnamespace AND a.grantee = 0
    UNION ALL SELECT p.proname, a.privilege_type FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    WHERE p.pronamespace = 'holdfast'::regnamespace AND a.grantee = 0
    UNION ALL SELECT n.nspname, a.privilege_type FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'holdfast' AND a.grantee = 0`.execute(
    database.db,
  )
  expect(rows).toEqual([])
})
