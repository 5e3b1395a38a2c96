import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface DeclaredMachine {
  readonly name: string
  readonly version: number
  readonly queue: string
  readonly maxReclaims: number
}

/**
 * Tells the deployment what this scheduler can run. Sorted by key, because ON CONFLICT DO UPDATE locks in the order of its rows.
 * Locks: machine rows. Served by: machine_pkey.
 */
export const declareMachines = statement<{ machines: readonly DeclaredMachine[] }, never>(
  'engine.declare_machines',
  ({ machines }) => sql<never>`
INSERT INTO holdfast.machine (name, version, queue, max_reclaims)
SELECT * FROM unnest(
  ${machines.map((row) => row.name)}::text[], ${machines.map((row) => row.version)}::integer[],
  ${machines.map((row) => row.queue)}::text[], ${machines.map((row) => row.maxReclaims)}::integer[]
) AS m (name, version, queue, max_reclaims)
ORDER BY name, version
ON CONFLICT (name, version) DO UPDATE SET queue = excluded.queue, max_reclaims = excluded.max_reclaims, seen_at = now()`,
  { machines: [{ name: 'checkout', version: 1, queue: 'default', maxReclaims: 5 }] },
)

/**
 * Some of what is declared, for the message to somebody who asked for something else: versions of the names asked for come first.
 * Locks: nothing. Served by: nothing; it reads the whole table, which has a row for each version of each machine, and only when a request is refused.
 */
export const listDeclared = statement<{ asked: readonly string[]; limit: number }, { name: string; version: number }>(
  'engine.list_declared',
  ({ asked, limit }) => sql`
SELECT name, version FROM holdfast.machine ORDER BY name = ANY (${asked}::text[]) DESC, name, version LIMIT ${limit}::integer`,
  { asked: ['checkout'], limit: 20 },
)
