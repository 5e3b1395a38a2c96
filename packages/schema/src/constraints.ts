/**
 * Names of the constraints and unique indexes that decide races or refuse input; the code that handles one of them, where it fires, knows it by
 * this name. A test looks each of them up in the migrated database.
 */
export const Constraints = Object.freeze({
  /** Two claims that made one slot of a gate: the later one loses. */
  gateSlot: 'gate_slot_pkey',
  /** Two claims that made one bucket. */
  rateBucket: 'rate_bucket_pkey',
  /** A bucket that would be overdrawn. */
  rateBucketWithinCapacity: 'rate_bucket_within_capacity',
  /** Two executing instances of one serial key: the later claim of two loses. */
  concurrencyActive: 'instance_concurrency_active',
  /** Two instances that occupy one correlation key: the later insert is told of the occupant. */
  correlation: 'instance_correlation',
  correlationScopeIsTerminal: 'instance_correlation_scope_is_terminal',
  childrenPendingNotNegative: 'instance_children_pending_not_negative',
  /** Two outcomes of one claim: the later one is stale. */
  outcome: 'outcome_pkey',
  outcomeShape: 'outcome_shape',
  /** Two signals with one key in an inbox. */
  signalDedup: 'signal_dedup',
  /** A signal delivered again after its first was consumed. */
  signalReceipt: 'signal_receipt_pkey',
  /** A tick that is fired a second time. */
  scheduleRun: 'schedule_run_pkey',
  /** A definition computed before a tick that was fired meanwhile: it is computed again. */
  scheduleNextIsAfterLast: 'schedule_next_is_after_last',
  projectName: 'project_name',
  apiTokenSha256: 'api_token_sha256',
} as const)
