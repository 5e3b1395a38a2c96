export { type CheckOptions, checkInvariants, type Examined, examineInvariants, type Violation } from './check-invariants.ts'
export { engineInvariants } from './engine-invariants.ts'
export type { Invariant } from './invariant.ts'
export { scheduleInvariants } from './schedule-invariants.ts'
