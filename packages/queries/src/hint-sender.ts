import type { Channel } from '@holdfast/contracts'
import { notify } from './engine/notify.ts'
import type { Executor } from './statement.ts'

export interface HintSenderOptions {
  readonly db: Executor
  /** At most one statement per channel in so many milliseconds. Default 10. */
  readonly windowMs?: number
  /** A hint could not be sent; nothing depends on it. */
  readonly onError?: (error: unknown) => void
}

interface Window {
  readonly payloads: Set<string>
  timer: NodeJS.Timeout | undefined
}

/**
 * Sends NOTIFYs out of band, after the commits they speak of, and coalesced: the first of a channel goes at once, what comes within the window
 * after it goes together at its end. However many commits there are, a process sends at most a hundred a second on a channel.
 */
export class HintSender {
  readonly #options: HintSenderOptions
  readonly #windows = new Map<Channel, Window>()
  readonly #sending = new Set<Promise<void>>()

  constructor(options: HintSenderOptions) {
    this.#options = options
  }

  send(channel: Channel, payload: string): void {
    const window = this.#windows.get(channel) ?? { payloads: new Set<string>(), timer: undefined }
    this.#windows.set(channel, window)
    window.payloads.add(payload)
    if (window.timer === undefined) this.#open(channel, window)
  }

  /** Sends what is waiting and resolves when it is out. */
  async close(): Promise<void> {
    for (const [channel, window] of this.#windows) {
      clearTimeout(window.timer)
      window.timer = undefined
      this.#flush(channel, window)
    }
    await Promise.all(this.#sending)
  }

  #open(channel: Channel, window: Window): void {
    this.#flush(channel, window)
    window.timer = setTimeout(() => {
      window.timer = undefined
      if (window.payloads.size > 0) this.#open(channel, window)
    }, this.#options.windowMs ?? 10)
    window.timer.unref()
  }

  #flush(channel: Channel, window: Window): void {
    if (window.payloads.size === 0) return
    const payloads = [...window.payloads]
    window.payloads.clear()
    const sending: Promise<void> = notify(this.#options.db, { channel, payloads }).then(
      () => void this.#sending.delete(sending),
      (error: unknown) => {
        this.#sending.delete(sending)
        this.#options.onError?.(error)
      },
    )
    this.#sending.add(sending)
  }
}
