import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export const ROOT: string = join(import.meta.dirname, '../..')

export interface DevFile {
  readonly apiUrl: string
  readonly manageUrl: string
  readonly token: string
  readonly readOnlyToken: string
  readonly operatorToken: string
  readonly databaseUrl: string
  readonly pids: Readonly<Record<string, number>>
  readonly health: Readonly<Record<string, string>>
  readonly postgresPid: number
}

/** `npm start` as a newcomer types it, with a home and ports of its own. */
export class RunningSystem {
  readonly home: string
  readonly child: ChildProcess
  output = ''
  #dev: DevFile | undefined

  private constructor(home: string, env: Readonly<Record<string, string>>) {
    this.home = home
    this.child = spawn('npm', ['start', '--silent'], {
      cwd: ROOT,
      env: { ...process.env, HOLDFAST_HOME: home, HOLDFAST_API_PORT: '0', HOLDFAST_MANAGE_PORT: '0', HOLDFAST_PG_PORT: '0', ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true, // a group of its own, as a terminal gives it
    })
    for (const stream of [this.child.stdout, this.child.stderr]) stream?.on('data', (data: Buffer) => (this.output += data.toString()))
  }

  static async home(): Promise<string> {
    const home = await mkdtemp(join(tmpdir(), 'holdfast-home-'))
    await chmod(home, 0o755) // PostgreSQL runs as another account when we are root, and has to get in
    return home
  }

  static spawn(home: string, env: Readonly<Record<string, string>> = {}): RunningSystem {
    return new RunningSystem(home, env)
  }

  static async start(home: string, env: Readonly<Record<string, string>> = {}): Promise<RunningSystem> {
    const system = new RunningSystem(home, env)
    const file = join(home, 'dev.json')
    const untilMs = performance.now() + 60_000
    while (!existsSync(file) || !system.output.includes('Holdfast is up')) {
      if (system.child.exitCode !== null) throw new Error(`npm start ended with ${system.child.exitCode}:\n${system.output}`)
      if (performance.now() > untilMs) throw new Error(`npm start is not up after a minute:\n${system.output}`)
      await sleep(50)
    }
    system.#dev = JSON.parse(readFileSync(file, 'utf8')) as DevFile
    return system
  }

  get dev(): DevFile {
    if (this.#dev === undefined) throw new Error('the system is not up')
    return this.#dev
  }

  /** Its exit code, once it has ended. */
  async ended(): Promise<number | null> {
    if (this.child.exitCode === null && this.child.signalCode === null) await once(this.child, 'exit')
    return this.child.exitCode
  }

  async stop(signal: NodeJS.Signals = 'SIGINT'): Promise<number | null> {
    // To the whole group, as Ctrl-C in a terminal goes.
    const running = this.child.exitCode === null && this.child.signalCode === null
    if (running && this.child.pid !== undefined) process.kill(-this.child.pid, signal)
    return this.ended()
  }
}

export const alive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

export const remove = (home: string): Promise<void> => rm(home, { recursive: true, force: true })
