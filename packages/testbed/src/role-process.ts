import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Role } from '@holdfast/schema'

const root = join(import.meta.dirname, '../../..')

export interface RoleProcessOptions {
  readonly role: Role
  readonly env: Readonly<Record<string, string | undefined>>
  /** Each line that it prints. */
  readonly onLine?: (line: string) => void
}

/** What a role says once it is up. */
export interface Started {
  readonly health_url: string
  readonly api_url?: string
  readonly manage_url?: string
}

/** One role as a process of its own, run from its sources as the deployed one is run from its build. */
export class RoleProcess {
  readonly role: Role
  readonly child: ChildProcess
  readonly #started = Promise.withResolvers<Started>()
  /** The last lines that it printed, for a message when it ends too early. */
  readonly #last: string[] = []

  constructor({ role, env, onLine }: RoleProcessOptions) {
    this.role = role
    this.child = spawn(
      process.execPath,
      [
        '--conditions=@holdfast/source',
        '--import',
        join(root, 'tools/decorators.mjs'),
        '--import',
        join(root, 'packages/host/src/register.ts'),
        join(root, `apps/${role}/src/main.ts`),
      ],
      // A group of its own: Ctrl-C in the terminal goes to the starter alone, which stops the roles in order.
      { cwd: root, env: { ...env }, stdio: ['ignore', 'pipe', 'pipe'], detached: true },
    )
    this.#started.promise.catch(() => undefined) // whoever waits is told; nobody has to
    for (const stream of [this.child.stdout, this.child.stderr]) {
      if (stream === null) continue
      createInterface({ input: stream }).on('line', (line) => {
        this.#last.push(line)
        if (this.#last.length > 20) this.#last.shift()
        if (line.includes('"msg":"started"')) this.#started.resolve(JSON.parse(line) as Started)
        onLine?.(line)
      })
    }
    this.child.once('error', (error) => this.#started.reject(error))
    this.child.once('exit', (code, signal) =>
      this.#started.reject(new Error(`the ${role} ended before it was up (${signal ?? `exit code ${code}`}):\n${this.#last.join('\n')}`)),
    )
  }

  get pid(): number {
    return this.child.pid ?? -1
  }
  get running(): boolean {
    return this.child.exitCode === null && this.child.signalCode === null && this.child.pid !== undefined
  }

  /** Resolves when it is up; rejects with what it printed if it ends before. */
  started(): Promise<Started> {
    return this.#started.promise
  }

  /** Sends a signal and resolves when the process has ended, with its exit code (null after a signal that ended it). */
  async end(signal: 'SIGTERM' | 'SIGKILL' = 'SIGTERM'): Promise<number | null> {
    if (!this.running) return this.child.exitCode
    const exited = once(this.child, 'exit')
    this.child.kill(signal)
    await exited
    return this.child.exitCode
  }
}
