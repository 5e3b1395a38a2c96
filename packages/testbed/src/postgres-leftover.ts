// What a killed process of ours leaves behind: a server that lives on and holds its folder, or only the pid file of one.
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'

/** The folder's server was started by a process that is still running. */
export class DataFolderInUseError extends Error {
  override readonly name = 'DataFolderInUseError'
  readonly ownerPid: number

  constructor(folder: string, ownerPid: number) {
    super(
      `the database folder ${folder} is in use by process ${ownerPid}. Stop that one first, or give this one another folder with HOLDFAST_HOME.`,
    )
    this.ownerPid = ownerPid
  }
}

interface Leftover {
  readonly pid: number
  /** Undefined for an orphan. */
  readonly ownerPid: number | undefined
}

/** A fast shutdown waits for its checkpoint; after this long the server is told to quit and recovers at the next start. */
const FAST_SHUTDOWN_MS = 10_000

/** Frees `folder` of an orphaned server and of a stale pid file. @throws DataFolderInUseError */
export async function releaseFolder(folder: string): Promise<void> {
  const file = join(folder, 'postmaster.pid')
  if (!existsSync(file)) return
  const found = serverOf(folder, file)
  if (found === 'unknown') return // PostgreSQL itself refuses to start beside another
  if (found?.ownerPid !== undefined) throw new DataFolderInUseError(folder, found.ownerPid)
  if (found !== undefined) await end(folder, file, found.pid)
  rmSync(file, { force: true })
}

/** Begins the name of a temporary folder; it tells whose it is from the first moment, also while it is being made. */
export const temporaryPrefix = `holdfast-pg-${process.pid}-`

/** Stops the servers of, and removes, temporary folders in `parent` whose process is gone. Those of running processes are left alone. */
export async function sweepAbandoned(parent: string): Promise<void> {
  for (const name of readdirSync(parent)) {
    const ownerPid = /^holdfast-pg-(\d+)-/.exec(name)?.[1]
    if (ownerPid === undefined || isRunning(Number(ownerPid))) continue
    const folder = join(parent, name)
    const file = join(folder, 'postmaster.pid')
    try {
      const found = existsSync(file) ? serverOf(folder, file) : undefined
      if (found === 'unknown') continue
      if (found !== undefined) await end(folder, file, found.pid)
      rmSync(folder, { recursive: true, force: true })
    } catch {
      // Of another user, or being swept by another run: it is only tidying.
    }
  }
}

async function end(folder: string, file: string, pid: number): Promise<void> {
  const runs = (): boolean => typeof serverOf(folder, file, pid) === 'object'
  for (const [signal, limitMs] of [
    ['SIGINT', FAST_SHUTDOWN_MS],
    ['SIGQUIT', 5_000],
  ] as const) {
    process.kill(pid, signal)
    for (let waitedMs = 0; waitedMs < limitMs; waitedMs += 50) {
      if (!runs()) return
      await pause(50)
    }
  }
  throw new Error(`a PostgreSQL (pid ${pid}) still holds ${folder} and does not end; end it by hand`)
}

/** The running server of `folder`; by its command line, not by the number alone, which another process may have by now. */
function serverOf(
  folder: string,
  file: string,
  pid = Number(readFileSync(file, 'utf8').split('\n', 1)[0]),
): Leftover | undefined | 'unknown' {
  const seen = look(pid)
  if (seen === 'unknown' || seen === undefined) return seen
  if (!` ${seen.args.join(' ')} `.includes(` -D ${folder} `)) return undefined
  const owner = Number(/holdfast\.owner_pid=(\d+)/.exec(seen.args.join(' '))?.[1])
  // An orphan gets another parent: init, or whoever adopts.
  return { pid, ownerPid: owner === seen.parentPid ? owner : undefined }
}

/** True also where it cannot be told. */
export const isRunning = (pid: number): boolean => look(pid) !== undefined

/** Process `pid`, undefined where there is none. */
function look(pid: number): { args: string[]; parentPid: number } | undefined | 'unknown' {
  if (!Number.isSafeInteger(pid) || pid <= 0) return undefined
  if (existsSync('/proc/self/cmdline')) {
    try {
      const args = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').filter(Boolean)
      if (args.length === 0) return undefined // a zombie
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
      return { args, parentPid: Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]) }
    } catch {
      return undefined // gone
    }
  }
  const { error, stdout } = spawnSync('ps', ['-o', 'ppid=,args=', '-p', String(pid)], { encoding: 'utf8' })
  if (error) return 'unknown'
  const [parent, ...args] = stdout.trim().split(/\s+/)
  return args.length === 0 ? undefined : { args, parentPid: Number(parent) }
}
