// The one place where the tools read the environment.
import { join } from 'node:path'

const root = join(import.meta.dirname, '..')

const number = (name: string, fallback: number): number => {
  const text = process.env[name]
  if (text === undefined || text === '') return fallback
  const value = Number(text)
  if (!Number.isInteger(value) || value < 0 || value > 65_535)
    throw new Error(`${name} is ${JSON.stringify(text)}; it must be a port, 0 for any free one`)
  return value
}

export interface StartEnv {
  /** Everything that a local system keeps. Default `.holdfast` in the repository. */
  readonly home: string
  readonly apiPort: number
  readonly managePort: number
  readonly postgresPort: number
  /** An existing server instead of the embedded one. */
  readonly databaseUrl: string | undefined
  /** Modules that the scheduler loads. */
  readonly machines: string
}

export const readStartEnv = (): StartEnv => ({
  home: process.env['HOLDFAST_HOME'] || join(root, '.holdfast'),
  apiPort: number('HOLDFAST_API_PORT', 7_400),
  managePort: number('HOLDFAST_MANAGE_PORT', 7_401),
  postgresPort: number('HOLDFAST_PG_PORT', 7_432),
  databaseUrl: process.env['HOLDFAST_DATABASE_URL'] || undefined,
  machines: process.env['HOLDFAST_MACHINES'] || join(root, 'examples'),
})

/** The environment that a role inherits: ours, less what belongs to the starter. */
export const inherited = (): NodeJS.ProcessEnv => ({ ...process.env })

/** Where `npm run` was typed; npm itself goes to the root. */
export const typedIn = (): string | undefined => process.env['INIT_CWD'] || undefined
