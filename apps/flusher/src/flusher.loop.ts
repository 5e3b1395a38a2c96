import { Channels } from '@holdfast/contracts'
import { Flusher } from '@holdfast/engine'
import { type Loop, type RoleResources, WorkLoop } from '@holdfast/host'
import { Listener } from '@holdfast/queries'
import { connectOne } from '@holdfast/schema'

/** First and longest pause while nothing is staged; a hint ends it. The first is short because hints are coalesced. */
const IDLE_MS = 5
const MAX_IDLE_MS = 1_000

/** Flushes as long as there is something staged, and looks at once when it hears that there is. */
export class FlusherLoop implements Loop {
  readonly name = 'flusher'
  readonly #loop: WorkLoop
  readonly #listener: Listener | undefined

  constructor({ db, hints, logger, connection, listen }: RoleResources, maxBatch: number) {
    const flusher = new Flusher({ db, hints, logger, maxBatch })
    this.#loop = new WorkLoop({
      name: 'flush',
      idleMs: IDLE_MS,
      maxIdleMs: MAX_IDLE_MS,
      logger,
      run: async () => {
        const { taken, quarantined } = await flusher.flush()
        return { busy: taken > 0 || quarantined > 0 }
      },
    })
    this.#listener = listen
      ? new Listener({
          connect: () => connectOne(connection),
          channels: [Channels.outcome],
          onNotification: () => this.#loop.wake(),
          onConnected: () => this.#loop.wake(),
          onError: (error) => logger.warn({ err: error }, 'not hearing notifications; polling meanwhile'),
        })
      : undefined
  }

  start(): void {
    this.#listener?.start()
    this.#loop.start()
  }
  async stop(): Promise<void> {
    await this.#listener?.stop()
    await this.#loop.stop()
  }
  isHealthy(): string | null {
    return this.#loop.isHealthy()
  }
}
