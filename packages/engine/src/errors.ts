/** Thrown by step code to say that trying again cannot help: the instance fails at once, whatever its retry policy. */
export class TerminalError extends Error {
  override readonly name: string = 'TerminalError'
  /** Stored as `error.code` of the instance. */
  readonly code: string
  constructor(message: string, options: ErrorOptions & { code?: string } = {}) {
    super(message, options)
    this.code = options.code ?? 'failed'
  }
}

/** The reason of `ctx.signal` and the error given to `onError` when a step has run longer than its `timeout`. Retried by default. */
export class StepTimeoutError extends Error {
  override readonly name = 'StepTimeoutError'
  readonly code = 'step_timeout'
}

/** The reason of `ctx.signal` when the claim is gone: whatever the step answers will be dropped, because somebody else runs it again. */
export class LeaseLostError extends Error {
  override readonly name = 'LeaseLostError'
}

/** The reason of `ctx.signal` when the process is stopping: finish soon, or be run again elsewhere. */
export class ShutdownError extends Error {
  override readonly name = 'ShutdownError'
}

/** The reason of `ctx.signal` when somebody has cancelled the instance: clean up and end soon; after the grace (30 s) the claim is over. */
export class CancelledError extends Error {
  override readonly name = 'CancelledError'
}

/** The time of a wait was over before the instance had come so far; it goes on, and can be waited for again. */
export class WaitTimeoutError extends Error {
  override readonly name = 'WaitTimeoutError'
}
