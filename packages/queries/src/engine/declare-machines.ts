import { type RawBuilder, sql } from 'kysely'
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
 * Says that a scheduler with these machines is there still; every half a minute by each, and one of several that share a machine is enough.
 * Locks: machine rows SKIP LOCKED, those that nobody has seen for a while. Served by: machine_pkey.
 */
export const refreshMachines = statement<{ machines: readonly Pick<DeclaredMachine, 'name' | 'version'>[]; staleMs: number }, never>(
  'engine.refresh_machines',
  ({ machines, staleMs }) => sql<never>`
WITH stale AS MATERIALIZED (
  SELECT m.name, m.version
  FROM unnest(${machines.map((row) => row.name)}::text[], ${machines.map((row) => row.version)}::integer[]) AS mine (name, version)
  CROSS JOIN LATERAL (
    SELECT d.name, d.version FROM holdfast.machine d
    WHERE d.name = mine.name AND d.version = mine.version AND d.seen_at < now() - ${staleMs}::bigint * interval '1 millisecond'
    FOR NO KEY UPDATE SKIP LOCKED
  ) m
)
UPDATE holdfast.machine g SET seen_at = now() FROM stale WHERE g.name = stale.name AND g.version = stale.version`,
  { machines: [{ name: 'checkout', version: 1 }], staleMs: 15_000 },
)

/** Whether nobody can run instance `g`: no scheduler with its machine and version has been there for five minutes. Schedulers say so every half a minute. */
export const nobodyRunsIt: RawBuilder<unknown> = sql`NOT EXISTS (
    SELECT FROM holdfast.machine m WHERE m.name = g.machine AND m.version = g.version AND m.seen_at > now() - interval '5 minutes'
  )`

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
