export { type Child, type ChildOptions, child } from './child.ts'
export type { ChildFilter, Children, ChildView } from './children.ts'
export { CronClock, InvalidCronError } from './cron-clock.ts'
export { CancelledError, LeaseLostError, ShutdownError, StepTimeoutError, TerminalError, WaitTimeoutError } from './errors.ts'
export { Flusher, type FlusherOptions, type FlushResult } from './flusher.ts'
export type { Hints } from './hints.ts'
export { InstanceWaits, waitIsOver, type WaitUntil } from './instance-waits.ts'
export type { RateLimit } from '@holdfast/contracts'
export { type Limiter, PostgresLimiter } from './limiter.ts'
export type { Logger, StepLogger } from './logger.ts'
export {
  type JobDefinition,
  job,
  type Machine,
  type MachineDefinition,
  type MachineSettings,
  machine,
  type StepDefinition,
} from './machine.ts'
export type { Outcome } from './outcome.ts'
export { Reaper, type ReaperOptions } from './reaper.ts'
export type { RetryPolicy } from './retry-policy.ts'
export { Scheduler, type SchedulerOptions, type WaitForOptions } from './scheduler.ts'
export type { ErrorContext, JobContext, LimitOptions, ReceivedSignal, StepContext } from './step-context.ts'
