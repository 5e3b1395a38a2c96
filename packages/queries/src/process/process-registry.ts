import type { ProcessId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface NewProcess {
  readonly role: string
  readonly host: string
  readonly pid: number
  readonly version: string
  readonly poolMax: number
}

export const registerProcess = statement<NewProcess, { id: ProcessId }>(
  'process.register',
  ({ role, host, pid, version, poolMax }) => sql<{ id: ProcessId }>`
INSERT INTO holdfast.process (role, host, pid, version, pool_max)
VALUES (${role}::text, ${host}::text, ${pid}::integer, ${version}::text, ${poolMax}::integer)
RETURNING id`,
  { role: 'api', host: 'host', pid: 1, version: '0.0.0', poolMax: 10 },
)

/** Answers nothing when the row is gone: the process was taken for dead and registers again. */
export const beatProcess = statement<{ id: ProcessId }, { id: ProcessId }>(
  'process.beat',
  ({ id }) => sql<{ id: ProcessId }>`UPDATE holdfast.process SET heartbeat_at = now() WHERE id = ${id}::bigint RETURNING id`,
  { id: '1' as ProcessId },
)

export const leaveProcess = statement<{ id: ProcessId }, never>(
  'process.leave',
  ({ id }) => sql<never>`DELETE FROM holdfast.process WHERE id = ${id}::bigint`,
  { id: '1' as ProcessId },
)

/** Removes the rows of processes that have been silent for `silentMs`; their claims end by their leases, not by this. */
export const removeDeadProcesses = statement<{ silentMs: number }, { id: ProcessId; role: string; host: string; pid: number }>(
  'process.remove_dead',
  ({ silentMs }) => sql`
DELETE FROM holdfast.process WHERE heartbeat_at < now() - ${silentMs}::bigint * interval '1 millisecond' RETURNING id, role, host, pid`,
  { silentMs: 60_000 },
)

export interface ProcessRow {
  readonly id: ProcessId
  readonly role: string
  readonly host: string
  readonly pid: number
  readonly version: string
  readonly started_at: Date
  readonly silent_ms: number
}
export const listProcesses = statement<Record<never, never>, ProcessRow>(
  'process.list',
  () => sql<ProcessRow>`
SELECT id, role, host, pid, version, started_at, (extract(epoch FROM now() - heartbeat_at) * 1000)::float8 AS silent_ms
FROM holdfast.process ORDER BY role, id`,
  {},
)

/** Answers at all: what readiness asks the database. */
export const ping = statement<Record<never, never>, { ok: number }>('process.ping', () => sql<{ ok: number }>`SELECT 1 AS ok`, {})
