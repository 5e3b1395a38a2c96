import type { Channel } from '@holdfast/contracts'
import type pg from 'pg'

export interface ListenerOptions {
  /** Makes one dedicated connection, not from a pool: LISTEN belongs to its session. */
  readonly connect: () => Promise<pg.Client>
  readonly channels: readonly Channel[]
  readonly onNotification: (channel: Channel, payload: string) => void
  /** Called when the connection is up, the first time and again: whatever was sent meanwhile is lost, so look at everything once. */
  readonly onConnected?: () => void
  readonly onError?: (error: Error) => void
}

/** Longest pause between two attempts to connect again. */
const MAX_RECONNECT_MS = 5_000

/**
 * Hears hints on a connection of its own and connects again, for ever, when it is lost. Nothing depends on it: every listener polls as well.
 * Does not work through a transaction-pooling proxy, which has no sessions to listen on; leave it out there.
 */
export class Listener {
  readonly #options: ListenerOptions
  #client: pg.Client | undefined
  #stopped = true
  #retry: NodeJS.Timeout | undefined
  #attempt = 0

  constructor(options: ListenerOptions) {
    this.#options = options
  }

  /** Does not wait for the connection: a database that is away must not keep a process from starting. */
  start(): void {
    if (!this.#stopped) return
    this.#stopped = false
    void this.#open()
  }

  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#retry)
    const client = this.#client
    this.#client = undefined
    if (client !== undefined) await client.end().catch(() => undefined) // it may be gone already, which is what we want
  }

  get connected(): boolean {
    return this.#client !== undefined
  }

  async #open(): Promise<void> {
    let client: pg.Client | undefined
    try {
      client = await this.#options.connect()
      client.on('error', (error) => this.#lost(client, error))
      client.on('end', () => this.#lost(client))
      client.on('notification', ({ channel, payload }) => this.#options.onNotification(channel as Channel, payload ?? ''))
      // Channel names are constants of ours, not input; LISTEN takes no parameters.
      await client.query(this.#options.channels.map((channel) => `LISTEN ${channel}`).join('; '))
    } catch (error) {
      if (client !== undefined) await client.end().catch(() => undefined)
      this.#again(error as Error)
      return
    }
    if (this.#stopped) {
      await client.end().catch(() => undefined)
      return
    }
    this.#client = client
    this.#attempt = 0
    this.#options.onConnected?.()
  }

  #lost(client: pg.Client | undefined, error?: Error): void {
    if (this.#stopped || client === undefined || this.#client !== client) return
    this.#client = undefined
    client.end().catch(() => undefined)
    this.#again(error ?? new Error('the connection that hears notifications was closed'))
  }

  #again(error: Error): void {
    if (this.#stopped) return
    this.#options.onError?.(error)
    const delayMs = Math.min(MAX_RECONNECT_MS, 100 * 2 ** Math.min(this.#attempt++, 10))
    this.#retry = setTimeout(() => void this.#open(), delayMs * (0.5 + Math.random() / 2))
  }
}
