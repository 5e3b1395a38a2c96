import { Constraints } from '@holdfast/schema'

/** SQLSTATE and constraint of an error from the database, where it is one. */
export function sqlState(error: unknown): { state: string; constraint: string | undefined } | undefined {
  if (typeof error !== 'object' || error === null || !('code' in error) || typeof error.code !== 'string') return undefined
  if (!/^[0-9A-Z]{5}$/.test(error.code)) return undefined
  const constraint = 'constraint' in error && typeof error.constraint === 'string' ? error.constraint : undefined
  return { state: error.code, constraint }
}

/** Lost against another transaction; the same work, tried again, meets what the winner committed. */
export function isLostRace(error: unknown): boolean {
  const found = sqlState(error)
  if (found === undefined) return false
  // deadlock_detected, serialization_failure; and what two claims, or two who fire a tick, may meet on.
  return found.state === '40P01' || found.state === '40001' || (found.constraint !== undefined && RACES.has(found.constraint))
}

const RACES: ReadonlySet<string> = new Set([
  Constraints.concurrencyActive,
  Constraints.gateSlot,
  Constraints.rateBucket,
  Constraints.rateBucketWithinCapacity,
  Constraints.scheduleRun,
])

/**
 * The database refused the data of a statement: a constraint, a value out of range, something too large. Whatever else goes wrong (a missing column, a missing right)
 * is not the fault of what was sent, and no reason to give it up.
 */
export function isRefusedData(error: unknown): boolean {
  const state = sqlState(error)?.state
  // 22 data exception, 23 integrity constraint, 54 program limit, P0001 raised by a trigger.
  return state !== undefined && (/^(?:22|23|54)/.test(state) || state === 'P0001')
}

const CONNECTION_CODES: ReadonlySet<string> = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
])

/**
 * The database could not be reached or went away; whether the statement was committed is unknown. Everything we send is fenced, so it may be
 * sent again.
 */
export function isConnectionLoss(error: unknown): boolean {
  const state = sqlState(error)?.state
  // 08 connection, 53300 too many connections, 57P01–57P05 shutdown, crash, starting up, dropped, idle timeout; 25006 a replica not yet promoted.
  if (state !== undefined) return state.startsWith('08') || state === '53300' || state.startsWith('57P') || state === '25006'
  if (!(error instanceof Error)) return false
  if (error instanceof AggregateError) return error.errors.some(isConnectionLoss)
  if ('code' in error && typeof error.code === 'string' && CONNECTION_CODES.has(error.code)) return true
  // pg's own errors for a socket that closed under a query, and for a pool that found no connection in time, carry no code.
  return /Connection terminated|connection timeout|timeout exceeded when trying to connect|Client has encountered a connection error/i.test(
    error.message,
  )
}
