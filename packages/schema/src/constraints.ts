/** Names of the constraints that decide races or refuse input; where one fires, the code that handles it knows it by this name. */
export const Constraints = Object.freeze({
  /** Two executing instances of one serial key. */
  concurrencyActive: 'instance_concurrency_active',
  /** Two live instances with one correlation key. */
  correlation: 'instance_correlation',
  /** Two outcomes of one claim. */
  outcome: 'outcome_pkey',
  signalDedup: 'signal_dedup',
  signalReceipt: 'signal_receipt_pkey',
  projectName: 'project_name',
  apiToken: 'api_token_sha256',
} as const)
