import { HoldfastApiError, HoldfastUnreachableError, InstanceFailedError, NotStorableError, WaitTimeoutError } from '@holdfast/client'
import { isConnectionLoss, sqlState } from '@holdfast/queries'
import { MigrationRefusedError } from '@holdfast/schema'
import { CommanderError } from 'commander'
import { type ExitCode, ExitCodes, UsageError } from './exit-code.ts'

export interface Failure {
  readonly exitCode: ExitCode
  /** A code of the API, or one of ours for what never got there. */
  readonly code: string
  readonly message: string
}

/** A gateway's answers, and the API's own when its database is away. */
const AWAY: ReadonlySet<number> = new Set([502, 503, 504])
// 28 wrong login or password, 3D000 no such database: a server is there, but not the one that was meant.
const NOT_LET_IN = /^(?:28|3D000)/

/** What to tell about an error, and what to end with. */
export function failureOf(error: unknown): Failure {
  if (error instanceof UsageError || error instanceof CommanderError)
    return { exitCode: ExitCodes.usage, code: 'usage', message: error.message }
  if (error instanceof NotStorableError) return { exitCode: ExitCodes.usage, code: 'usage', message: error.message }
  if (error instanceof HoldfastApiError) return ofApi(error)
  if (error instanceof HoldfastUnreachableError) return { exitCode: ExitCodes.unreachable, code: 'unreachable', message: error.message }
  if (error instanceof InstanceFailedError) return { exitCode: ExitCodes.refused, code: 'instance_failed', message: error.message }
  if (error instanceof WaitTimeoutError) return { exitCode: ExitCodes.refused, code: 'not_settled', message: error.message }
  if (error instanceof MigrationRefusedError) return { exitCode: ExitCodes.refused, code: 'migration_refused', message: error.message }
  return ofDatabase(error) ?? internal(error)
}

function ofApi({ code, status, message }: HoldfastApiError): Failure {
  const exitCode = AWAY.has(status) ? ExitCodes.unreachable : ExitCodes.refused
  const hint =
    code === 'unauthenticated'
      ? '. Give the right token: --token or HOLDFAST_TOKEN for a project, --operator-token or HOLDFAST_OPERATOR_TOKEN for management'
      : ''
  return { exitCode, code, message: message + hint }
}

function ofDatabase(error: unknown): Failure | undefined {
  const state = sqlState(error)?.state
  const message = error instanceof AggregateError ? error.errors.map((each) => (each as Error).message).join('; ') : messageOf(error)
  if (isConnectionLoss(error) || (state !== undefined && NOT_LET_IN.test(state)))
    return {
      exitCode: ExitCodes.unreachable,
      code: 'unreachable',
      message: `the database cannot be used: ${message}. See that it runs, and what HOLDFAST_DATABASE_URL or --database-url names`,
    }
  if (state === '42501')
    return { exitCode: ExitCodes.refused, code: 'forbidden', message: `the login of the database may not do that: ${message}` }
  // The migrator names its file and line.
  if (error instanceof Error && error.message.startsWith('migration '))
    return { exitCode: ExitCodes.refused, code: 'migration_failed', message }
  return undefined
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

const internal = (error: unknown): Failure => ({
  exitCode: ExitCodes.internal,
  code: 'internal',
  message: error instanceof Error ? (error.stack ?? error.message) : String(error),
})
