import { hostname } from 'node:os'
import type { ProcessId } from '@holdfast/contracts'
import { beatProcess, isConnectionLoss, leaveProcess, type NewProcess, registerProcess } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import type { Logger } from './logger.ts'
import type { Loop } from './loop.ts'

export interface ProcessRegistryOptions {
  readonly db: Db
  readonly role: string
  readonly version: string
  readonly poolMax: number
  readonly beatMs: number
  readonly logger: Logger
}

/** Keeps this process's row in `holdfast.process`: there while it lives, heart-beaten, gone after a graceful stop. */
export class ProcessRegistry implements Loop {
  readonly name = 'process registry'
  readonly #options: ProcessRegistryOptions
  #id: ProcessId | undefined
  #timer: NodeJS.Timeout | undefined
  #beating: Promise<void> | undefined
  #stopped = true
  #failures = 0

  constructor(options: ProcessRegistryOptions) {
    this.#options = options
  }

  get id(): ProcessId | undefined {
    return this.#id
  }

  /** Does not wait for the database: a process may start before it. */
  start(): void {
    if (!this.#stopped) return
    this.#stopped = false
    this.#next(0)
  }

  async stop(): Promise<void> {
    if (this.#stopped) return
    this.#stopped = true
    clearTimeout(this.#timer)
    await this.#beating
    const id = this.#id
    this.#id = undefined
    if (id === undefined) return
    try {
      await leaveProcess(this.#options.db, { id })
    } catch (error) {
      this.#options.logger.warn({ err: error }, 'this process could not take its row out of the list; a reaper will')
    }
  }

  isHealthy(): string | null {
    return this.#stopped ? 'the process registry is stopped' : null
  }

  #next(ms: number): void {
    if (this.#stopped) return
    this.#timer = setTimeout(() => {
      this.#beating = this.#beat()
    }, ms)
  }

  async #beat(): Promise<void> {
    const { db, role, version, poolMax, beatMs, logger } = this.#options
    try {
      if (this.#id !== undefined && (await beatProcess(db, { id: this.#id })).length === 0) {
        logger.warn({ process_id: this.#id }, 'this process was taken for dead; it registers again')
        this.#id = undefined
      }
      if (this.#id === undefined) {
        const row: NewProcess = { role, host: hostname(), pid: process.pid, version, poolMax }
        this.#id = (await registerProcess(db, row))[0]?.id
      }
      this.#failures = 0
      this.#next(beatMs)
    } catch (error) {
      this.#failures += 1
      if (this.#failures === 1 || !isConnectionLoss(error))
        logger.warn({ err: error }, 'this process could not say that it lives; trying again')
      this.#next(Math.min(beatMs, 200 * 2 ** Math.min(this.#failures, 8)))
    }
  }
}
