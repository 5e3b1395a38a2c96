import { Worker } from 'node:worker_threads'
import type { InstanceId } from '@holdfast/contracts'
import type { ConnectOptions } from '@holdfast/schema'
import { ClaimTable, monotonicMs } from './claim-table.ts'
import type { FromLeaseThread, LeaseThreadData } from './lease-thread-messages.ts'
import type { Logger } from './logger.ts'

/** One claim of this process: the same instance may be claimed again, under another epoch, before its old claim is dropped. */
export interface HeldClaim {
  readonly id: InstanceId
  readonly epoch: string
}

export interface LeaseKeeperOptions {
  readonly connection: ConnectOptions
  readonly leaseMs: number
  readonly heartbeatMs: number
  /** Most claims that are held at once; 24 bytes each. */
  readonly capacity: number
  readonly logger: Logger
  /** The claim is over: reaped, or claimed by somebody else since. */
  readonly onLost: (id: InstanceId, epoch: string) => void
  /** The claim stands, and somebody asked its instance to stop. Told with every renewal until it has. */
  readonly onCancelling: (id: InstanceId) => void
}

/**
 * Keeps the leases of this process's claims from a worker thread with a connection of its own, so that a step which blocks the event loop
 * does not lose its lease. The thread knows each step's timeout and stops renewing a claim whose step has outrun it, because a blocked
 * event loop cannot say so itself.
 */
export class LeaseKeeper {
  readonly #options: LeaseKeeperOptions
  readonly #table: ClaimTable
  readonly #slots = new Map<string, number>()
  #thread: Worker | undefined
  #stopping = false

  constructor(options: LeaseKeeperOptions) {
    this.#options = options
    this.#table = new ClaimTable(options.capacity)
  }

  start(): void {
    if (this.#thread !== undefined) return
    this.#stopping = false
    this.#spawn()
  }

  hold(claims: readonly HeldClaim[]): void {
    for (const { id, epoch } of claims) this.#slots.set(keyOf(id, epoch), this.#table.hold(id, epoch, Number.POSITIVE_INFINITY))
  }

  /** The step of this claim has started and may run so long; its lease is not renewed past it. */
  limit({ id, epoch }: HeldClaim, timeoutMs: number): void {
    const slot = this.#slots.get(keyOf(id, epoch))
    if (slot !== undefined) this.#table.limit(slot, monotonicMs() + timeoutMs)
  }

  drop(claims: readonly HeldClaim[]): void {
    for (const { id, epoch } of claims) {
      const key = keyOf(id, epoch)
      const slot = this.#slots.get(key)
      if (slot === undefined) continue
      this.#slots.delete(key)
      this.#table.drop(slot)
    }
  }

  async stop(): Promise<void> {
    this.#stopping = true
    const thread = this.#thread
    this.#thread = undefined
    if (thread === undefined) return
    const exited = new Promise<void>((resolve) => thread.once('exit', () => resolve()))
    thread.postMessage('stop')
    const late = setTimeout(() => void thread.terminate(), 2_000)
    await exited
    clearTimeout(late)
  }

  #spawn(): void {
    const { logger, leaseMs, heartbeatMs, onLost, onCancelling } = this.#options
    // Functions cannot be sent to a thread.
    const { onIdleError: _onIdleError, ...connection } = this.#options.connection
    // A thread does not go through the loader hooks of this one, and the file has another ending once it is built.
    const source = import.meta.url.endsWith('.ts')
    const thread = new Worker(new URL(source ? './lease-thread.ts' : './lease-thread.js', import.meta.url), {
      name: 'holdfast-leases',
      workerData: { connection, leaseMs, heartbeatMs, claims: this.#table.memory } satisfies LeaseThreadData,
      execArgv: source ? ['--conditions=@holdfast/source'] : [],
    })
    this.#thread = thread
    thread.on('message', (message: FromLeaseThread) => {
      if ('error' in message) {
        logger.warn({ err: message.error, consecutive: message.consecutive }, 'leases could not be renewed; trying again')
        return
      }
      // One that was dropped while the thread asked is not lost.
      const lost = message.lost.filter(({ id, epoch }) => this.#slots.has(keyOf(id, epoch)))
      this.drop(lost)
      for (const { id, epoch } of lost) onLost(id, epoch)
      for (const { id } of message.cancelling) onCancelling(id)
    })
    thread.on('error', (error) => logger.error({ err: error }, 'the lease thread failed; starting another'))
    thread.on('exit', () => {
      if (this.#stopping || this.#thread !== thread) return
      // Without it every claim would run out, so there is always one; a second's pause keeps a thread that cannot start from spinning.
      setTimeout(() => {
        if (!this.#stopping) this.#spawn()
      }, 1_000).unref()
    })
    thread.unref()
  }
}

const keyOf = (id: InstanceId, epoch: string): string => `${id}:${epoch}`
