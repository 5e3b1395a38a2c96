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
