import type { FailureRecord, Instance } from '@holdfast/contracts'

/** A refusal of the API, with its code; `docs/http.md` lists them. */
export class HoldfastApiError extends Error {
  override readonly name = 'HoldfastApiError'
  readonly code: string
  readonly status: number
  constructor(code: string, status: number, message: string) {
    super(`${code}: ${message}`)
    this.code = code
    this.status = status
  }
}

/** The API could not be reached, or did not answer in time. Whether the request was carried out is unknown, unless it was a read. */
export class HoldfastUnreachableError extends Error {
  override readonly name = 'HoldfastUnreachableError'
}

/** The instance that was waited for has failed or was cancelled. */
export class InstanceFailedError extends Error {
  override readonly name = 'InstanceFailedError'
  readonly instance: Instance
  readonly failure: FailureRecord | null
  constructor(instance: Instance) {
    super(`instance ${instance.id} (${instance.machine}) ${instance.status}: ${instance.error?.message ?? 'no reason was given'}`)
    this.instance = instance
    this.failure = instance.error as FailureRecord | null
  }
}

/** The time was over before the instance ended; it goes on, and may be waited for again. */
export class WaitTimeoutError extends Error {
  override readonly name = 'WaitTimeoutError'
  readonly instance: Instance | undefined
  constructor(id: string, timeoutMs: number, instance: Instance | undefined) {
    super(
      `instance ${id} has not ended within ${timeoutMs} ms${instance === undefined ? '' : `; it is ${instance.status}`}. It goes on; wait again to see its end`,
    )
    this.instance = instance
  }
}
