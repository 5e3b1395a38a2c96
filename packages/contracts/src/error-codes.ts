/** The closed set of codes in `{"error":{"code","message"}}`, with the HTTP status each is sent with. docs/http.md explains them. */
export const ErrorStatus = Object.freeze({
  invalid_body: 400,
  invalid_instance: 400,
  invalid_signal: 400,
  invalid_project: 400,
  invalid_credential: 400,
  invalid_queue: 400,
  invalid_limit: 400,
  invalid_schedule: 400,
  unauthenticated: 401,
  forbidden: 403,
  not_found: 404,
  unknown_machine: 404,
  not_settled: 408,
  instance_conflict: 409,
  project_conflict: 409,
  payload_too_large: 413,
  rate_limited: 429,
  internal: 500,
  no_database_capacity: 503,
} as const)
export type ErrorCode = keyof typeof ErrorStatus

/** A refusal that a person can act on. `retryable` says whether the same request may succeed later. */
export class HoldfastError extends Error {
  override readonly name: string = 'HoldfastError'
  readonly code: ErrorCode
  readonly retryable: boolean
  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.retryable = ErrorStatus[code] >= 429
  }
  get status(): number {
    return ErrorStatus[this.code]
  }
}
