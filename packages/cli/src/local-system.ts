import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { UsageError } from './exit-code.ts'

/** What `npm start` writes while it runs (tools/start.ts). */
export interface LocalSystem {
  readonly apiUrl?: string
  readonly manageUrl?: string
  readonly token?: string
  readonly operatorToken?: string
  readonly databaseUrl?: string
}

const REPOSITORY = join(import.meta.dirname, '../../..')

/**
 * The system that `npm start` runs on this machine: of `home` where it is given, else of the nearest `.holdfast` in or above the working directory, else of
 * the checkout that this package lies in. Undefined when none is running: the file is removed at the stop.
 */
export function findLocalSystem(home: string | undefined, cwd: string): LocalSystem | undefined {
  const folders = home === undefined ? [...above(cwd), REPOSITORY].map((folder) => join(folder, '.holdfast')) : [home]
  const file = folders.map((folder) => join(folder, 'dev.json')).find((each) => existsSync(each))
  if (file === undefined) return undefined
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as LocalSystem
  } catch (error) {
    throw new UsageError(`${file} is not what npm start has written: ${(error as Error).message}. Remove it, or start again`)
  }
}

function* above(folder: string): Generator<string> {
  yield folder
  if (dirname(folder) !== folder) yield* above(dirname(folder))
}
