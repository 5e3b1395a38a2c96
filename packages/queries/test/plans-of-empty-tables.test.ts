import { allStatements } from '@holdfast/queries'
import { testDatabase } from '@holdfast/testbed'
import { CompiledQuery, sql } from 'kysely'
import { expect, test } from 'vitest'

interface Plan {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly 'TID Cond'?: string
  readonly Plans?: readonly Plan[]
}
const nodes = (plan: Plan): Plan[] => [plan, ...(plan.Plans ?? []).flatMap(nodes)]

// A plan is made once for each connection and lasts until the next ANALYZE. One that was made while a table was empty, or while nothing was leased, meets a
// million rows minutes later: it must look each row up and never walk the table, however cheap that is at the moment.
const HOT = [
  'engine.claim',
  'engine.stage_outcomes',
  'engine.apply_outcomes',
  'engine.apply_given',
  'engine.apply_riders',
  'engine.wake_waiters',
  'engine.claim_by_id',
  'engine.cancel_instances',
  'engine.promote_throttled',
  'engine.quarantine_outcome',
  'engine.heartbeat',
  'engine.release_claims',
  'engine.promote_due',
  'engine.fire_await_deadlines',
  'engine.reap_expired',
  'engine.deliver_signal_by_id',
  'engine.deliver_signal_by_key',
  'engine.load_inbox',
]

test.each(HOT)('%s looks rows up on empty tables, too', async (name) => {
  await using database = await testDatabase()
  await sql`VACUUM ANALYZE`.execute(database.db)
  const statement = allStatements.get(name)
  if (statement === undefined) throw new Error(`there is no statement ${name}`)
  const { sql: text, parameters } = statement.compile(statement.sample)
  const { rows } = await database.db.executeQuery<{ 'QUERY PLAN': [{ Plan: Plan }] }>(
    CompiledQuery.raw(`EXPLAIN (FORMAT JSON) ${text.replace(/^\/\* \S+ \*\//, '')}`, [...parameters]),
  )
  const plan = rows[0]?.['QUERY PLAN'][0].Plan
  if (plan === undefined) throw new Error('no plan')
  const onTables = nodes(plan).filter((node) => ['instance', 'signal', 'outcome', 'signal_receipt'].includes(node['Relation Name'] ?? ''))
  expect(onTables.length).toBeGreaterThan(0)
  const walks = onTables.filter(
    ({ 'Node Type': type, 'Index Cond': index, 'TID Cond': tid }) =>
      type.endsWith('Scan') && !/Bitmap Heap/.test(type) && index === undefined && tid === undefined,
  )
  expect(walks.map((node) => `${node['Node Type']} ${node['Index Name'] ?? node['Relation Name']}`)).toEqual([])
})
