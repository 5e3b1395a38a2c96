import type { Channel } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

/**
 * Sends hints, out of band and after the commit they speak of: a NOTIFY takes a database-wide lock while its transaction commits, and inside
 * each small transaction it halves their rate. Nor is its own commit waited for on the disk: a hint may be lost.
 */
export const notify = statement<{ channel: Channel; payloads: readonly string[] }, never>(
  'engine.notify',
  ({ channel, payloads }) => sql<never>`
SELECT pg_notify(${channel}::text, p) FROM unnest(${payloads}::text[]) AS p, set_config('synchronous_commit', 'off', true)`,
  { channel: 'holdfast_runnable', payloads: ['default'] },
)
