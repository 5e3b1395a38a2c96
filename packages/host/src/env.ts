import { DatabaseRoles } from '@holdfast/schema'
import { z } from 'zod'

const port = z.coerce.number().int().min(0).max(65_535)
const whole = (min: number, max: number) => z.coerce.number().int().min(min).max(max)

/** Settings that every role has. Each app adds its own beside these in its `env.ts`. */
export const hostEnv = {
  /** postgres:// URL of the database. Required. Behind a transaction-pooling proxy it logs in as the role's own database role. */
  HOLDFAST_DATABASE_URL: z.string().regex(/^postgres(ql)?:\/\//, 'expected a URL that starts with postgres://'),
  /** Database role to act as after the login, which must be a member of it. Default: the role's own; empty: stay what the login is. */
  HOLDFAST_DATABASE_ROLE: z.string().optional(),
  /** `off` for transaction-pooling proxies without prepared statements: no named statements, no startup options, no LISTEN. */
  HOLDFAST_PREPARE: z.enum(['on', 'off']).default('on'),
  /** Most connections of this process's pool, one or two dedicated ones not counted. Too few: statements queue; too many: the server runs out. */
  HOLDFAST_POOL_MAX: whole(1, 1_000).default(10),
  /** Port of /health/live, /health/ready and /metrics. 0: any free one, named in the first log line. */
  HOLDFAST_HEALTH_PORT: port.default(0),
  /** Address that listener binds. 127.0.0.1 unless probes come from elsewhere (0.0.0.0 in a container). */
  HOLDFAST_HEALTH_HOST: z.string().min(1).default('127.0.0.1'),
  HOLDFAST_LOG_LEVEL: z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']).default('info'),
  /** How long a stop may take before the process ends anyway, in ms. Below the grace period of whatever stops it; too short makes steps run twice. */
  HOLDFAST_SHUTDOWN_MS: whole(0, 3_600_000).default(25_000),
  /** How often the process says that it lives, in ms. */
  HOLDFAST_PROCESS_BEAT_MS: whole(100, 600_000).default(10_000),
} as const

/** Settings of OpenTelemetry that we read ourselves; the SDK reads the rest of its OTEL_… variables. */
const telemetryEnv = z.object({ OTEL_EXPORTER_OTLP_ENDPOINT: z.string().min(1).optional() })

const hostSchema = z.object(hostEnv)
export type HostEnv = z.infer<typeof hostSchema>

/** The environment cannot be used; the message has one line for each variable and says what to do. Exit code 78, as for a configuration error. */
export class EnvironmentError extends Error {
  override readonly name = 'EnvironmentError'
  readonly exitCode = 78
}

/** May stand in a variable's value without being repeated in a message. */
const SECRET = /URL|TOKEN|PASSWORD|SECRET|KEY/

/** Reads one app's environment once. Throws {@link EnvironmentError}. */
export function parseEnv<Shape extends z.ZodRawShape>(
  shape: Shape,
  source: Readonly<Record<string, string | undefined>> = process.env,
): z.infer<z.ZodObject<Shape>> {
  const parsed = z.object(shape).safeParse(source)
  if (parsed.success) return parsed.data
  const lines = parsed.error.issues.map((issue) => {
    const name = String(issue.path[0])
    const given = source[name]
    const shown = given === undefined ? 'is not set' : SECRET.test(name) ? 'has a value that does not fit' : `is ${JSON.stringify(given)}`
    return `  ${name} ${shown}: ${issue.message}`
  })
  throw new EnvironmentError(
    `The environment cannot be used:\n${lines.join('\n')}\nSee docs/operations/settings.md for every setting, its meaning and its default.`,
  )
}

export const telemetryEndpoint = (): string | undefined => telemetryEnv.parse(process.env).OTEL_EXPORTER_OTLP_ENDPOINT

export const databaseRole = (role: keyof typeof DatabaseRoles, env: HostEnv): string | undefined =>
  env.HOLDFAST_DATABASE_ROLE === undefined ? DatabaseRoles[role] : env.HOLDFAST_DATABASE_ROLE || undefined
