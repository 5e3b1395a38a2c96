import type { InstanceId } from '@holdfast/contracts'
import { Worker } from 'node:worker_threads'
import type { FromLeaseThread, LeaseThreadData, ToLeaseThread } from './lease-thread-messages.ts'
import type { Logger } from './logger.ts'

export interface HeldClaim {
  readonly id: InstanceId
  readonly epoch: string
  /** From now; the lease is not renewed past it. undefined: as long as the step runs. */
  readonly timeoutMs: number | undefined
}

export type EndedClaim = Pick<HeldClaim, 'id' | 'epoch'>

/** As the thread is told: by a clock that both share, because a thread that is just starting reads its messages late. */
export interface TimedClaim extends EndedClaim {
  readonly untilMs: number
}

/** The same in every thread of the process, unlike `performance.now()`, which begins with each. */
export const monotonicMs = (): number => Number(process.hrtime.bigint() / 1_000n) / 1_000

export interface LeaseKeeperOptions extends LeaseThreadData {
  readonly logger: Logger
  /** The claim is over: reaped, or claimed by somebody else since. */
  readonly onLost: (id: InstanceId, epoch: string) => void
}

/**
 * Keeps the leases of this process's claims from a worker thread with a connection of its own, so that a step which blocks the event loop
 * does not lose its lease. The thread knows each step's timeout and stops renewing a claim whose step has outrun it, because a blocked
 * event loop cannot say so itself.
 */
export class LeaseKeeper {
  readonly #options: LeaseKeeperOptions
  #thread: Worker | undefined
  #stopping = false
  #held = new Map<InstanceId, TimedClaim>()

  constructor(options: LeaseKeeperOptions) {
    this.#options = options
  }

  start(): void {
    if (this.#thread !== undefined) return
    this.#stopping = false
    this.#spawn()
  }

  hold(claims: readonly HeldClaim[]): void {
    if (claims.length === 0) return
    const nowMs = monotonicMs()
    const held = claims.map(({ id, epoch, timeoutMs }) => ({
      id,
      epoch,
      untilMs: timeoutMs === undefined ? Number.POSITIVE_INFINITY : nowMs + timeoutMs,
    }))
    for (const claim of held) this.#held.set(claim.id, claim)
    this.#post({ hold: held })
  }

  /** By id and epoch: the same instance may have been claimed again by this process before its old claim is dropped. */
  drop(claims: readonly EndedClaim[]): void {
    if (claims.length === 0) return
    for (const { id, epoch } of claims) if (this.#held.get(id)?.epoch === epoch) this.#held.delete(id)
    this.#post({ drop: claims })
  }

  async stop(): Promise<void> {
    this.#stopping = true
    const thread = this.#thread
    this.#thread = undefined
    if (thread === undefined) return
    const exited = new Promise<void>((resolve) => thread.once('exit', () => resolve()))
    thread.postMessage({ stop: true } satisfies ToLeaseThread)
    const late = setTimeout(() => void thread.terminate(), 2_000)
    await exited
    clearTimeout(late)
  }

  #post(message: ToLeaseThread): void {
    this.#thread?.postMessage(message)
  }

  #spawn(): void {
    const { logger, leaseMs, heartbeatMs } = this.#options
    // Functions cannot be sent to a thread.
    const { onIdleError: _onIdleError, ...connection } = this.#options.connection
    // A thread does not go through the loader hooks of this one, and the file has another ending once it is built.
    const source = import.meta.url.endsWith('.ts')
    const thread = new Worker(new URL(source ? './lease-thread.ts' : './lease-thread.js', import.meta.url), {
      name: 'holdfast-leases',
      workerData: { connection, leaseMs, heartbeatMs } satisfies LeaseThreadData,
      execArgv: source ? ['--conditions=@holdfast/source'] : [],
    })
    this.#thread = thread
    thread.on('message', (message: FromLeaseThread) => {
      if ('lost' in message) for (const { id, epoch } of message.lost) this.#options.onLost(id, epoch)
      else logger.warn({ err: message.error, consecutive: message.consecutive }, 'leases could not be renewed; trying again')
    })
    thread.on('error', (error) => logger.error({ err: error }, 'the lease thread failed; starting another'))
    thread.on('exit', () => {
      if (this.#stopping || this.#thread !== thread) return
      // Without it every claim would run out, so there is always one; a second's pause keeps a thread that cannot start from spinning.
      setTimeout(() => {
        if (this.#stopping) return
        this.#spawn()
        this.#post({ hold: [...this.#held.values()] })
      }, 1_000).unref()
    })
    thread.unref()
  }
}
