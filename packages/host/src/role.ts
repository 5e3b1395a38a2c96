import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { HintSender } from '@holdfast/queries'
import { type ConnectOptions, connect, type DatabaseRoles, type Db, engineSessionSettings, type Role } from '@holdfast/schema'
import type { DynamicModule, INestApplicationContext } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { databaseRole, EnvironmentError, type HostEnv } from './env.ts'
import { Health, type HealthListener, serveHealth } from './health.ts'
import { createLogger, type Logger, NestLogger } from './logger.ts'
import type { Loop } from './loop.ts'
import { ProcessRegistry } from './process-registry.ts'
import { stopTelemetry } from './telemetry.ts'
import { CODE_VERSION, KNOWN_SCHEMA } from './version.ts'

/** What every role is built from; a role's module hands them to its providers by token. */
export interface RoleResources {
  readonly role: Role
  readonly env: HostEnv
  readonly logger: Logger
  readonly connection: ConnectOptions
  readonly db: Db
  readonly hints: HintSender
  /** Names this process among the live ones: role, host and process id. */
  readonly worker: string
  /** Whether this process has sessions of its own to listen on. */
  readonly listen: boolean
}

/** What a role's module makes of them. */
export interface RoleApplication {
  readonly app: INestApplicationContext
  readonly loops: readonly Loop[]
  /** Addresses that it serves, for the first log line. */
  readonly urls?: Readonly<Record<string, string>>
  /** Stops taking work from outside; before the loops stop. */
  readonly stopServing?: () => Promise<void>
}

export interface RoleDefinition<Env extends HostEnv> {
  readonly role: Role
  readonly readEnv: () => Env
  /** Session settings of its connections. Default: the engine's. */
  readonly settings?: Readonly<Record<string, string>>
  /** `health` answers for the whole process; a role that serves HTTP shows it there too. */
  /** The database role, where it is not that of the app's name. */
  readonly databaseRole?: (env: Env) => keyof typeof DatabaseRoles
  readonly build: (resources: RoleResources, env: Env, health: () => Health) => Promise<RoleApplication>
}

/** A Nest application without HTTP, whose lines go to the role's log. */
export const createContext = (module: DynamicModule, logger: Logger): Promise<INestApplicationContext> =>
  // abortOnError off: a wiring error is thrown and logged instead of ending the process without a word.
  NestFactory.createApplicationContext(module, { logger: new NestLogger(logger), abortOnError: false })

/**
 * Runs one role until SIGTERM or SIGINT: environment, log, database, health listener, process row, its loops; and at the end the same in reverse.
 * A second signal, or a stop that takes longer than HOLDFAST_SHUTDOWN_MS, ends it with exit code 1 and says what did not stop.
 */
export async function runRole<Env extends HostEnv>(definition: RoleDefinition<Env>): Promise<void> {
  const { role } = definition
  let env: Env
  try {
    env = definition.readEnv()
  } catch (error) {
    if (!(error instanceof EnvironmentError)) throw error
    process.stderr.write(`${error.message}\n`)
    process.exit(error.exitCode)
  }
  const logger = createLogger({ role, level: env.HOLDFAST_LOG_LEVEL })
  for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
    process.on(event, (error: unknown) => {
      logger.fatal({ err: error }, `${event}: the process ends; what it had claimed comes back by its leases`)
      process.exit(1)
    })
  }
  try {
    await start(definition, env, logger)
  } catch (error) {
    const taken = (error as { code?: string }).code === 'EADDRINUSE'
    logger.fatal(
      { err: error },
      taken
        ? `a port is taken: ${(error as Error).message}; choose another in the environment, or stop what uses it`
        : 'the process could not start',
    )
    process.exit(1)
  }
}

async function start<Env extends HostEnv>(definition: RoleDefinition<Env>, env: Env, logger: Logger): Promise<void> {
  const { role } = definition
  const prepared = env.HOLDFAST_PREPARE === 'on'
  const connection: ConnectOptions = {
    connectionString: env.HOLDFAST_DATABASE_URL,
    max: env.HOLDFAST_POOL_MAX,
    applicationName: `holdfast-${role}`,
    preparedStatements: prepared,
    role: databaseRole(definition.databaseRole?.(env) ?? role, env),
    settings: definition.settings ?? engineSessionSettings,
    onIdleError: (error) => logger.warn({ err: error }, 'an idle database connection was lost; the next statement opens another'),
  }
  const db = connect(connection)
  const hints = new HintSender({ db, onError: (error) => logger.debug({ err: error }, 'a hint was not sent') })
  const registry = new ProcessRegistry({
    db,
    role,
    version: CODE_VERSION,
    poolMax: env.HOLDFAST_POOL_MAX,
    beatMs: env.HOLDFAST_PROCESS_BEAT_MS,
    logger,
  })
  const loops: Loop[] = [registry]
  const resources: RoleResources = { role, env, logger, connection, db, hints, worker: workerName(role), listen: prepared }
  const health = new Health({ db, loops: () => loops, knownSchema: KNOWN_SCHEMA })
  const built = await definition.build(resources, env, () => health)
  loops.push(...built.loops)
  const listener = await serveHealth(health, { host: env.HOLDFAST_HEALTH_HOST, port: env.HOLDFAST_HEALTH_PORT })
  stopOnSignal({ built, loops, health, listener, hints, db, logger, shutdownMs: env.HOLDFAST_SHUTDOWN_MS })
  for (const loop of loops) await loop.start()
  logger.info({ pid: process.pid, health_url: listener.url, ...built.urls }, 'started')
}

interface Running {
  readonly built: RoleApplication
  readonly loops: readonly Loop[]
  readonly health: Health
  readonly listener: HealthListener
  readonly hints: HintSender
  readonly db: Db
  readonly logger: Logger
  readonly shutdownMs: number
}

function stopOnSignal(running: Running): void {
  const { logger, shutdownMs } = running
  let pending: string | undefined
  const begin = (signal: NodeJS.Signals): void => {
    if (pending !== undefined) {
      logger.error({ signal, pending }, 'told again to stop; ending at once')
      process.exit(1)
    }
    pending = 'beginning'
    logger.info({ signal }, 'stopping')
    setTimeout(() => {
      logger.error({ pending, shutdown_ms: shutdownMs }, 'the stop took too long; ending now')
      process.exit(1)
    }, shutdownMs).unref()
    stopAll(running, (step) => (pending = step)).then(
      () => {
        logger.info({}, 'stopped')
        process.exit(0)
      },
      (error: unknown) => {
        logger.error({ err: error, pending }, 'the stop failed; ending')
        process.exit(1)
      },
    )
  }
  process.on('SIGTERM', begin)
  process.on('SIGINT', begin)
}

/** First no new work, then the loops, then what they used. The process row goes last of the loops, because it stands for all of them. */
async function stopAll({ built, loops, health, listener, hints, db }: Running, at: (step: string) => void): Promise<void> {
  at('serving')
  health.stopping()
  await built.stopServing?.()
  const [registry, ...working] = loops
  for (const loop of working) at(loop.name)
  await Promise.all(working.map((loop) => loop.stop()))
  at('hints')
  await hints.close()
  at('process registry')
  await registry?.stop()
  at('application')
  await built.app.close()
  at('database')
  await db.destroy()
  at('telemetry')
  await stopTelemetry()
  await listener.close()
}

function workerName(role: Role): string {
  // The random part tells apart processes that have the same pid in containers with the same host name (digest, ledger 16).
  return `${role}@${hostname()}#${process.pid}-${randomBytes(3).toString('hex')}`
}
