export { HoldfastApiError, HoldfastUnreachableError, InstanceFailedError, WaitTimeoutError } from './client-errors.ts'
export { type Duration, HoldfastError, type Instance, type MachineRef, NotStorableError, type Schedule } from '@holdfast/contracts'
export type { Enqueue, EnqueueOptions } from './enqueue-options.ts'
export {
  type BulkFilter,
  type BulkOptions,
  HoldfastClient,
  type ListFilter,
  type SignalOptions,
  type SignalTarget,
  type WaitOptions,
} from './holdfast-client.ts'
export { type Call, type HttpOptions, HttpTransport } from './http-transport.ts'
export { LimitsClient, type RateLimitDefinition } from './limits-client.ts'
export { type ScheduleDefinition, SchedulesClient } from './schedules-client.ts'
export { type OwnTransaction, type SqlConnection, TransactionalClient, type TransactionalOptions } from './transactional.ts'
