import type { JsonValue } from './json.ts'

/** What a step may answer. The strings are those of the database enum `holdfast.outcome_kind`. */
export const OutcomeKinds = Object.freeze([
  'next',
  'sleep',
  'retry',
  'await_signal',
  'done',
  'fail',
  'cancel',
  'spawn',
  'continue_as',
] as const)
export type OutcomeKind = (typeof OutcomeKinds)[number]

/** Stored as `instance.error` and in history; `code` is for programs, `message` for people. */
export interface FailureRecord {
  readonly code: string
  readonly message: string
  readonly stack?: string
  readonly details?: JsonValue
}

/** Codes that the engine itself writes into `instance.error`. Step code may use others through `fail({ code, message })`. */
export const FailureCodes = Object.freeze({
  /** The step threw, or returned an error, and its retry policy was used up. */
  stepFailed: 'step_failed',
  /** The step answered `fail(reason)`. */
  failed: 'failed',
  /** The claim was lost more often than the machine allows: the step seems to kill its process. */
  crashLoop: 'crash_loop',
  /** The database refused to apply the outcome; it is in `holdfast.outcome_quarantine`. */
  outcomeRejected: 'outcome_rejected',
  /** The state, result or error could not be stored as JSON. */
  notStorable: 'not_storable',
  /** The row names a step that its machine does not have. */
  unknownStep: 'unknown_step',
  /** The state or input does not satisfy the machine's schema. */
  invalidState: 'invalid_state',
  /** The step ran longer than its `timeout`. */
  stepTimeout: 'step_timeout',
  cancelled: 'cancelled',
  /** The next step asks for a rate limit that does not exist, or for more of it than its burst. */
  invalidLimit: 'invalid_limit',
} as const)
