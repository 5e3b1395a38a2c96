import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { SystemOptions } from './systems/index.ts'
import type { System, Work } from './systems/system.ts'

export type ToWorker =
  | { readonly do: 'start'; readonly work: Work /** Jobs or machines until `called` is said. */; readonly count: number }
  /** The same work again, without a stop and a start. */
  | { readonly do: 'expect'; readonly count: number }
  | { readonly do: 'stop' }
  | { readonly do: 'end' }
export type FromWorker =
  | { readonly said: 'ready' | 'started' | 'expecting' | 'stopped' }
  /** As many handler calls as were expected have been made: when the first one was and when the last. */
  | { readonly said: 'called'; readonly firstMs: number; readonly lastMs: number }
  /** The handler of a ping runs. */
  | { readonly said: 'pinged'; readonly atMs: number }

type Said<Word extends FromWorker['said']> = Extract<FromWorker, { said: Word }>

/** A process that runs one role of a system; started and stopped as often as wanted, so that what is measured has been warmed up. */
export class WorkerProcess implements AsyncDisposable {
  readonly #child: ChildProcess
  readonly #what: string
  #failed: Error | undefined
  #onMessage: ((message: FromWorker) => void) | undefined
  #onFailure: ((error: Error) => void) | undefined
  readonly #unheard: FromWorker[] = []

  private constructor(what: string, child: ChildProcess) {
    this.#what = what
    this.#child = child
    child.on('message', (message: FromWorker) => {
      if (this.#onMessage === undefined) this.#unheard.push(message)
      else this.#onMessage(message)
    })
    child.once('exit', (code, signal) => {
      this.#failed = new Error(`the process of ${what} ended by itself, with ${signal ?? `code ${code}`}; what it said stands above`)
      this.#onFailure?.(this.#failed)
    })
  }

  static async spawn(system: System, role: string, url: string, { absurdSql }: SystemOptions): Promise<WorkerProcess> {
    const args = [system.family, workerNameOf(system), role, url, ...(absurdSql === undefined ? [] : [absurdSql])]
    const child = fork(join(import.meta.dirname, 'worker-main.ts'), args, {
      execArgv: ['--conditions=@holdfast/source'],
      // Reading our TypeScript takes half a second of a core for each process; hot code is compiled by V8 as ever.
      env: { ...process.env, NODE_COMPILE_CACHE: join(import.meta.dirname, '../../.holdfast/compile-cache') },
      // What a library prints must not get between our lines of JSON.
      stdio: ['ignore', 2, 2, 'ipc'],
    })
    const worker = new WorkerProcess(`${system.name} (${role})`, child)
    await worker.#heard('ready')
    return worker
  }

  get pid(): number {
    return this.#child.pid ?? -1
  }

  /** Resolves when it works; `called()` then waits for `count` of that work to have been handled. */
  async start(work: Work, count = 0): Promise<void> {
    this.#send({ do: 'start', work, count })
    // Fast handlers are all called before the start has been reported: those words are kept for called().
    await this.#heard('started')
  }
  /** As `start`, of a system that works already and that has nothing to do at this moment. */
  async expect(count: number): Promise<void> {
    this.#send({ do: 'expect', count })
    await this.#heard('expecting')
  }
  called(): Promise<Said<'called'>> {
    return this.#heard('called')
  }
  async pinged(): Promise<number> {
    return (await this.#heard('pinged')).atMs
  }
  async stop(): Promise<void> {
    this.#send({ do: 'stop' })
    await this.#heard('stopped')
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const exited = once(this.#child, 'exit')
    this.#send({ do: 'end' })
    // One that cannot stop holds nothing that is still wanted.
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), 30_000)
    await exited
    clearTimeout(timer)
  }

  #send(message: ToWorker): void {
    if (this.#failed !== undefined) throw this.#failed
    this.#child.send(message)
  }

  async #heard<Word extends FromWorker['said']>(word: Word): Promise<Said<Word>> {
    const kept = this.#unheard.findIndex(({ said }) => said === word)
    if (kept >= 0) return this.#unheard.splice(kept, 1)[0] as Said<Word>
    if (this.#failed !== undefined) throw this.#failed
    if (this.#onMessage !== undefined) throw new Error(`${this.#what} is waited for already`)
    try {
      return await new Promise<Said<Word>>((resolve, reject) => {
        this.#onFailure = reject
        this.#onMessage = (message) => {
          if (message.said === word) resolve(message as Said<Word>)
          else this.#unheard.push(message)
        }
      })
    } finally {
      this.#onMessage = undefined
      this.#onFailure = undefined
    }
  }
}

/** The limits of a variant concern its database and its producer; its worker is that of the engine's settings. */
const workerNameOf = ({ name, workerName = name }: System): string => workerName
