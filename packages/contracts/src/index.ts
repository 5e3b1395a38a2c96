export { type Channel, Channels } from './channels.ts'
export { type Duration, durationMs, MAX_DURATION_MS } from './duration.ts'
export { type ErrorCode, ErrorStatus, HoldfastError } from './error-codes.ts'
export { type InstanceId, InstanceIdSchema, type ProcessId, type ProjectId } from './ids.ts'
export {
  type InstanceStatus,
  InstanceStatuses,
  isSettled,
  isTerminal,
  type TerminalStatus,
  TerminalStatuses,
  transitions,
} from './instance-status.ts'
export { type JsonValue, MAX_JSON_BYTES, MAX_JSON_DEPTH, NotStorableError, storableJson } from './json.ts'
export { Limits } from './limits.ts'
export { type RateLimit, rateKeyOf } from './rate-key.ts'
export type { MachineRef, ResultOf, SignalsOf, StateOf } from './machine-ref.ts'
export { FailureCodes, type FailureRecord, type OutcomeKind, OutcomeKinds } from './outcome.ts'
export { SqlStates } from './sql-states.ts'
export * from './wire-control.ts'
export * from './wire-engine.ts'
export * from './wire-limits.ts'
export * from './wire-manage.ts'
export * from './wire-schedules.ts'
