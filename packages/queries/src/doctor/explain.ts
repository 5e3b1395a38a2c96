import type { Db } from '@holdfast/schema'
import { CompiledQuery } from 'kysely'
import { allStatements } from '../statement.ts'

export interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly Plans?: readonly PlanNode[]
}

/** Statements of the engine that may read much, because a person waits for them or they run once a day; every other one is a set of point look-ups. */
const MAY_READ_MUCH: ReadonlySet<string> = new Set([
  'engine.get_queue_depths',
  'engine.ensure_transition_partitions',
  'engine.drop_transition_partitions',
])

/** Names of the statements whose plans must go by an index, whatever the statistics say. */
export const hotStatements = (): string[] =>
  [...allStatements.keys()].filter((name) => name.startsWith('engine.') && !MAY_READ_MUCH.has(name)).sort()

/**
 * The generic plan of a statement of ours, as this session would run it; nothing is run. `db` has the engine's session settings, among them
 * force_generic_plan: the values that stand in for the parameters do not matter.
 *
 * EXPLAIN asks for the rights that the statement itself would need, and passes in a read-only session.
 */
export async function explainStatement(db: Db, name: string): Promise<PlanNode> {
  const found = allStatements.get(name)
  if (found === undefined) throw new Error(`there is no statement ${name}`)
  const { sql: text, parameters } = found.compile(found.sample)
  return db.connection().execute(async (session) => {
    await session.executeQuery(CompiledQuery.raw(`PREPARE doctor_explained AS ${text}`))
    try {
      const nothing = parameters.length === 0 ? '' : `(${parameters.map(() => 'NULL').join(', ')})`
      const { rows } = await session.executeQuery<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>(
        CompiledQuery.raw(`EXPLAIN (FORMAT JSON) EXECUTE doctor_explained${nothing}`),
      )
      const plan = rows[0]?.['QUERY PLAN'][0].Plan
      if (plan === undefined) throw new Error(`${name} was not explained`)
      return plan
    } finally {
      await session.executeQuery(CompiledQuery.raw('DEALLOCATE doctor_explained'))
    }
  })
}
