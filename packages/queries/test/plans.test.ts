import { type Role, connectOne, DatabaseRoles, engineSessionSettings } from '@holdfast/schema'
import { allStatements, type ClaimParams, claim, listInstances, applyOutcomes } from '@holdfast/queries'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import type pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { seedMillionRows } from './million-rows.ts'
import { servedBy } from './served-by.ts'

type Parameter = string | number | boolean | null | Uint8Array | readonly (string | number | boolean | null)[]

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Index Name'?: string
  readonly 'Relation Name'?: string
  readonly 'Actual Rows'?: number
  readonly 'Actual Loops'?: number
  readonly 'Rows Removed by Filter'?: number
  readonly 'Shared Hit Blocks'?: number
  readonly 'Shared Read Blocks'?: number
  readonly Plans?: readonly PlanNode[]
}

/** Who sends it, each with the settings of its sessions: the plan depends on them. */
const sentBy: Readonly<Record<string, Role>> = {
  'engine.claim': 'scheduler',
  'engine.load_inbox': 'scheduler',
  'engine.stage_outcomes': 'scheduler',
  'engine.heartbeat': 'scheduler',
  'engine.release_claims': 'scheduler',
  'engine.promote_due': 'reaper',
  'engine.fire_await_deadlines': 'reaper',
  'engine.reap_expired': 'reaper',
  'engine.delete_finished': 'reaper',
  'engine.apply_outcomes': 'flusher',
  'engine.apply_riders': 'flusher',
  'engine.has_outcomes': 'flusher',
  'engine.peek_outcome': 'flusher',
  'engine.quarantine_outcome': 'flusher',
  'engine.apply_given': 'direct-scheduler',
  'engine.claim_by_id': 'scheduler',
  'engine.get_end': 'scheduler',
  'engine.refresh_machines': 'scheduler',
  'engine.sample_unclaimable': 'reaper',
  'engine.lock_claim': 'scheduler',
  'engine.list_children': 'scheduler',
  'engine.count_children': 'scheduler',
  'engine.wake_waiters': 'flusher',
  'engine.next_waited_keys': 'reaper',
  'engine.promote_throttled': 'reaper',
  'engine.cancel_overdue': 'reaper',
  'engine.has_reaper_work': 'reaper',
  'engine.next_cascade': 'reaper',
  'engine.end_cascade': 'reaper',
  'schedules.find_due': 'scheduler',
  'schedules.fire_ticks': 'scheduler',
  'schedules.record_failures': 'scheduler',
  'schedules.delete_old_runs': 'reaper',
}
const LARGE = new Set(['instance', 'signal', 'signal_receipt', 'outcome', 'schedule_run'])
const isLarge = (relation: string | undefined): boolean =>
  relation !== undefined && (LARGE.has(relation) || /^transition(_\w+)?$/.test(relation))

let database: TestDatabase
const sessions = new Map<Role, pg.Client>()
beforeAll(async () => {
  database = await testDatabase()
  await seedMillionRows(database.db)
}, 180_000)
afterAll(async () => {
  await Promise.all([...sessions.values()].map((session) => session.end()))
  await database[Symbol.asyncDispose]()
})

async function sessionOf(role: Role): Promise<pg.Client> {
  const open = sessions.get(role)
  if (open !== undefined) return open
  // The api's sessions let PostgreSQL choose between generic and custom plans.
  const settings = role === 'api' ? { jit: 'off' } : engineSessionSettings
  const session = await connectOne({ connectionString: database.url, role: DatabaseRoles[role], settings })
  sessions.set(role, session)
  return session
}

/** PostgreSQL makes custom plans five times before it decides whether the generic one is as good. */
const EXECUTIONS = 7

/** The plan that the statement runs with in the long run, as a prepared one of that role. `analyze` runs it, and takes it back. */
async function plan(by: Role | pg.Client, text: string, parameters: readonly Parameter[], analyze = false): Promise<PlanNode> {
  const session = typeof by === 'string' ? await sessionOf(by) : by
  const literal = (value: Parameter): string => {
    if (value === null) return 'NULL'
    if (value instanceof Uint8Array) return `'\\x${Buffer.from(value).toString('hex')}'`
    return session.escapeLiteral(Array.isArray(value) ? `{${value.map((one) => one ?? 'NULL').join(',')}}` : String(value))
  }
  const execute = `EXECUTE explained ${parameters.length === 0 ? '' : `(${parameters.map(literal).join(', ')})`}`
  await session.query('BEGIN')
  try {
    await session.query(`PREPARE explained AS ${text}`)
    for (let time = 1; time < EXECUTIONS; time += 1) await session.query(`EXPLAIN ${execute}`)
    const { rows } = await session.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>(
      `EXPLAIN (FORMAT JSON ${analyze ? ', ANALYZE, BUFFERS' : ''}) ${execute}`,
    )
    const found = rows[0]?.['QUERY PLAN'][0].Plan
    if (found === undefined) throw new Error('no plan')
    return found
  } finally {
    await session.query('ROLLBACK')
    await session.query('DEALLOCATE ALL')
  }
}

/** Compiles a statement as its role will have prepared it. */
const compiled = (statement: { compile(params: never): { sql: string; parameters: readonly unknown[] } }, params: object) => {
  const { sql, parameters } = statement.compile(params as never)
  return [sql, parameters as readonly Parameter[]] as const
}

const nodes = (node: PlanNode): PlanNode[] => [node, ...(node.Plans ?? []).flatMap(nodes)]
const names = [...new Set(Object.values(servedBy).flat())].toSorted()

describe('on a million rows', () => {
  test.each(names)('%s finds its rows by the index that exists for it', async (name) => {
    const statement = allStatements.get(name)
    if (statement === undefined) throw new Error(`served-by.ts names ${name}, which is no statement`)
    const all = nodes(await plan(sentBy[name] ?? 'api', ...compiled(statement, statement.sample)))

    const scanned = all.filter((node) => node['Node Type'] === 'Seq Scan').map((node) => node['Relation Name'])
    // The default partition is empty as long as any reaper runs.
    expect(scanned.filter((relation) => isLarge(relation) && relation !== 'transition_default')).toEqual([])
    expect(all.filter((node) => /Hash Join|Merge Join|Bitmap Heap/.test(node['Node Type']) && touchesLarge(node))).toEqual([])

    const used = new Set(all.map((node) => node['Index Name']).filter((index) => index !== undefined))
    for (const [index, statements] of Object.entries(servedBy)) {
      if (!statements.includes(name)) continue
      if (!isLarge(all.find((node) => node['Index Name'] === index)?.['Relation Name']) && SMALL.has(index)) continue
      const accepted = either[name] ?? [index]
      expect(
        accepted.some((one) => [...used].map(parentIndex).includes(one)),
        `${name} uses ${[...used].join(', ')}, not ${index}`,
      ).toBe(true)
    }
  })

  test('a flush locks its instances in the order of the sorted outcomes: the nested loop is driven by them', async () => {
    const all = nodes(await plan('flusher', ...compiled(applyOutcomes, applyOutcomes.sample)))
    const update = all.find((node) => node['Node Type'] === 'ModifyTable' && node['Relation Name'] === 'instance')
    const [loop] = update?.Plans ?? []
    expect(loop?.['Node Type']).toBe('Nested Loop')
    const [outer, inner] = loop?.Plans ?? []
    expect(nodes(outer as PlanNode).map((node) => node['Node Type'])).toContain('Sort')
    expect(inner).toMatchObject({ 'Node Type': 'Index Scan', 'Index Name': 'instance_pkey' })
  })

  test('every statement on a large table is looked at', () => {
    // Not in the list: those that have nothing to look up, those of the doctor, and others for people, whose cost is in their comments.
    const unlisted = [...allStatements.keys()].filter((name) => !names.includes(name) && !name.startsWith('doctor.')).toSorted()
    expect(unlisted).toEqual([
      'engine.bound_transaction',
      'engine.declare_machines',
      'engine.drop_transition_partitions',
      'engine.ensure_transition_partitions',
      'engine.get_queue_depths',
      'engine.list_declared', // a row for each version of a machine, read whole
      'engine.list_gate_keys',
      'engine.notify',
      'engine.put_gate',
      'engine.put_rate_limit',
      'engine.remove_idle_buckets',
      'engine.remove_idle_slots',
      'engine.set_queue_paused',
      'process.list',
      'process.ping',
      'process.register',
      'process.remove_dead',
      'process.schema_version',
      'schedules.put',
      'tenants.create_project',
      'tenants.issue_token',
      'tenants.list_projects',
      'tenants.list_tokens',
      'tenants.set_project_suspended',
    ])
  })
})

/** Custom plans of the api: by project or straight by id, whichever the statistics of the project make cheaper. */
const either: Readonly<Record<string, readonly string[]>> = {
  'engine.get_instances': ['instance_pkey', 'instance_project'],
  'engine.list_instances': ['instance_project', 'instance_pkey'],
  'engine.match_instances': ['instance_project', 'instance_pkey'],
}
/** On tables of a few rows, where a scan is as good; what matters is that the index is there when they grow. */
const SMALL = new Set([
  'machine_pkey',
  'limit_policy_pkey',
  'gate_slot_pkey',
  'rate_bucket_pkey',
  'cascade_pkey',
  'schedule_pkey',
  'schedule_due',
  'queue_pkey',
  'project_pkey',
  'project_name',
  'process_pkey',
  'api_token_pkey',
])
const touchesLarge = (node: PlanNode): boolean => nodes(node).some((inner) => isLarge(inner['Relation Name']))
/** A partition's index is named after the partition: transition_20261201_instance_id_claim_epoch_idx. */
const parentIndex = (index: string): string => (/^transition_\w+_instance_id_claim_epoch_idx$/.test(index) ? 'transition_instance' : index)

describe('a claim reads what it takes, not what there is', () => {
  const given: ClaimParams = { queue: 'default', limit: 100, worker: 'w', leaseMs: 60_000, machines: ['m/1'] }
  const read = async (params: Partial<ClaimParams>) => {
    const all = nodes(await plan('scheduler', ...compiled(claim, { ...given, ...params }), true))
    const rowsOf = (node: PlanNode) => (node['Actual Rows'] ?? 0) * (node['Actual Loops'] ?? 0) + (node['Rows Removed by Filter'] ?? 0)
    const scans = all.filter((node) => isLarge(node['Relation Name']) && node['Node Type'].includes('Scan'))
    return {
      rows: scans.reduce((sum, node) => sum + rowsOf(node), 0),
      claimed: all[0]?.['Actual Rows'],
      buffers: (all[0]?.['Shared Hit Blocks'] ?? 0) + (all[0]?.['Shared Read Blocks'] ?? 0),
    }
  }

  test('100 of 80,000 runnable ones of its queue', async () => {
    const { rows, claimed, buffers } = await read({})
    expect(claimed).toBe(100)
    expect(rows).toBeLessThan(500)
    expect(buffers).toBeLessThan(8_000)
  })

  test('one, for a few pages', async () => {
    const { rows, claimed, buffers } = await read({ limit: 1 })
    expect(claimed).toBe(1)
    expect(rows).toBeLessThan(20)
    expect(buffers).toBeLessThan(200)
  })

  test('a small project is listed without a walk through the others', async () => {
    const [top, ...rest] = nodes(await plan('api', ...compiled(listInstances, { projectId: '3', limit: 50 }), true))
    expect(top?.['Actual Rows']).toBe(20)
    // The 5,000 that execute in all projects together are looked through; nothing else is.
    expect(rest.reduce((sum, node) => sum + (node['Rows Removed by Filter'] ?? 0), 0)).toBe(5_000)
  })

  test('nothing from an empty queue', async () => {
    const { rows, buffers } = await read({ queue: 'nothing-here' })
    expect(rows).toBe(0)
    expect(buffers).toBeLessThan(50)
  })

  test('nothing from a queue that is paused, without a look at its rows', async () => {
    await (await sessionOf('api')).query(`INSERT INTO holdfast.queue (name, paused_at) VALUES ('q1', now())`)
    const { rows } = await read({ queue: 'q1' })
    expect(rows).toBe(0)
  })
})

test.each([
  ['are not there for', []],
  // VACUUM makes every session plan again; an ANALYZE after it that finds the same size does not, and the plan lives on with what it did not know.
  ['know the size of, and nothing else about,', ['VACUUM holdfast.instance']],
  ['are from before', ['ANALYZE holdfast.instance']],
  ['are of', ['VACUUM ANALYZE holdfast.instance']],
])('where the statistics %s a backlog, a claim reads its front and sorts nothing', async (when, gathered) => {
  await using backlog = await testDatabase()
  const { db } = backlog
  await sql`INSERT INTO holdfast.instance (project_id, machine, status) SELECT 1, 'm', 'done' FROM generate_series(1, 5000)`.execute(db)
  const gather = async (): Promise<void> => {
    for (const command of gathered) await sql.raw(command).execute(db)
  }
  if (when === 'are from before') await gather()
  await sql`INSERT INTO holdfast.instance (project_id, machine, eligible_at)
    SELECT 1, 'm', now() - n * interval '1 ms' FROM generate_series(1, 150000) n`.execute(db)
  if (when !== 'are from before') await gather()
  const session = await connectOne({ connectionString: backlog.url, role: DatabaseRoles.scheduler, settings: engineSessionSettings })
  try {
    const [text, parameters] = compiled(claim, { queue: 'default', limit: 1_000, worker: 'w', leaseMs: 60_000, machines: ['m/1'] })
    const all = nodes(await plan(session, text, parameters, true))
    const locked = all.filter((node) => node['Node Type'] === 'LockRows').map(nodes)
    const candidates = locked.find((lock) => lock.some((node) => node['Index Name'] === 'instance_pick')) ?? []
    expect(candidates.map((node) => node['Node Type'])).toEqual(['LockRows', 'Result', 'Index Scan'])
    expect(candidates.map((node) => node['Actual Rows'])).toEqual([1_000, 1_000, 1_000])
  } finally {
    await session.end()
  }
})
