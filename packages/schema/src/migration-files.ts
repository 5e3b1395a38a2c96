import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'

/** Something about the migrations or the server that a person has to settle first; nothing was changed. */
export class MigrationRefusedError extends Error {
  override readonly name = 'MigrationRefusedError'
}

export interface MigrationFile {
  readonly version: number
  readonly name: string
  readonly text: string
  readonly sha256: string
  readonly compatibility: 'safe' | 'breaking'
}

/** The dumped result lies beside the migrations and is none. */
const DUMP = 'schema.sql'

/** The newest version of the files in `folder`. */
export async function expectedVersion(folder: string): Promise<number> {
  return (await readMigrations(folder)).length
}

/** All migrations of `folder` in order; entry `n` has version `n + 1`. @throws MigrationRefusedError */
export async function readMigrations(folder: string): Promise<readonly MigrationFile[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith('.sql') && name !== DUMP).sort()
  if (names.length === 0) throw new MigrationRefusedError(`${folder} holds no migrations (files named like 0001_name.sql)`)
  for (const [index, name] of names.entries()) requireName(name, index, names[index - 1])
  return Promise.all(names.map((name, index) => read(folder, name, index + 1)))
}

function requireName(name: string, index: number, before: string | undefined): void {
  if (!/^\d{4}_[a-z0-9_]+\.sql$/.test(name))
    throw new MigrationRefusedError(`${name} would never be applied: name it like 0001_name.sql (four digits, then a-z, 0-9 and _)`)
  const version = Number(name.slice(0, 4))
  if (version <= index) throw new MigrationRefusedError(`${name} has the number of ${before}; give the later of them the next free one`)
  if (version > index + 1) {
    const missing = String(index + 1).padStart(4, '0')
    throw new MigrationRefusedError(
      `migration ${missing} is missing before ${name}: restore its file, or, if there never was one, number ${name} without a gap`,
    )
  }
}

async function read(folder: string, name: string, version: number): Promise<MigrationFile> {
  // A checkout may have turned the line ends; that is not another migration.
  const text = (await readFile(join(folder, name), 'utf8')).replaceAll('\r\n', '\n')
  const compatibility = /^-- (safe|breaking): \S/.exec(text)?.[1]
  if (compatibility !== 'safe' && compatibility !== 'breaking') {
    throw new MigrationRefusedError(
      `${name} must begin with "-- safe: why" or "-- breaking: why": may processes of the version before go on beside it?`,
    )
  }
  // It would end our transaction, and with it "all or nothing". `END;` also closes a function's body, so it is not looked for.
  const ends = /^\s*(begin|commit|rollback|start\s+transaction)\s*(work|transaction)?\s*;/im.exec(text)?.[1]
  if (ends !== undefined)
    throw new MigrationRefusedError(`${name} has ${ends.toUpperCase()} in it: each file runs in one transaction of the migrator`)
  return { version, name, text, sha256: createHash('sha256').update(text).digest('hex'), compatibility }
}
