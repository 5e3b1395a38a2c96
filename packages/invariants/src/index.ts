export { checkInvariants, type Violation } from './check-invariants.ts'
export { engineInvariants } from './engine-invariants.ts'
export type { Invariant } from './invariant.ts'
