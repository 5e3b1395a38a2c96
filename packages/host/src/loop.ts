/** What a role keeps doing. `start` may be called once more after `stop`; `stop` may be called again and waits for work in flight. */
export interface Loop {
  readonly name: string
  start(): void | Promise<void>
  stop(): Promise<void>
  /** null, or why it should be restarted. A database that is away is not such a reason. */
  isHealthy(): string | null
}
