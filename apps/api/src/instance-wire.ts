import {
  type EnqueueRequest,
  HoldfastError,
  type Instance,
  type InstanceId,
  InstanceIdSchema,
  NotStorableError,
  rateKeyOf,
  storableJson,
} from '@holdfast/contracts'
import type { InstanceRow, NewInstance } from '@holdfast/queries'

const iso = (time: Date | null): string | null => time?.toISOString() ?? null

/** A row as the wire shows it. */
export const toWire = (row: InstanceRow): Instance => ({
  id: row.id,
  machine: row.machine,
  version: row.version,
  step: row.step,
  status: row.status,
  state: row.state as Instance['state'],
  result: row.result as Instance['result'],
  error: row.error as Instance['error'],
  attempt: row.attempt,
  queue: row.queue,
  priority: row.priority,
  eligible_at: row.eligible_at.toISOString(),
  awaits: row.awaits,
  await_deadline: iso(row.await_deadline),
  parent_id: row.parent_id,
  children_pending: row.children_pending,
  correlation_key: row.correlation_key,
  concurrency_key: row.concurrency_key,
  rate_limit: row.rate_key === null ? null : { key: row.rate_key, weight: row.rate_weight },
  throttled_until: row.throttled_until instanceof Date ? row.throttled_until.toISOString() : null,
  cancel_requested_at: iso(row.cancel_requested_at),
  trace_id: row.traceparent?.split('-')[1] ?? null,
  inserted_at: row.inserted_at.toISOString(),
  updated_at: row.updated_at.toISOString(),
})

/** What a request asks to insert. Throws HoldfastError for a state that cannot be stored and an instant that the database does not have. */
export const fromWire = (body: EnqueueRequest, traceparent: string | undefined): NewInstance => ({
  machine: body.machine,
  version: body.version,
  queue: body.queue,
  state: body.input === undefined ? storable(body.state, 'state', 'invalid_instance') : storable(body.input, 'input', 'invalid_instance'),
  priority: body.priority,
  delayMs: body.delay_ms,
  eligibleAt: body.eligible_at === undefined ? undefined : instant(body.eligible_at),
  correlationKey: body.correlation_key,
  correlationScope: body.correlation_scope,
  concurrencyKey: body.concurrency_key,
  ...rateKey(body.rate_limit),
  traceparent,
})

function rateKey(limit: EnqueueRequest['rate_limit']): Pick<NewInstance, 'rateKey' | 'rateWeight'> {
  try {
    return rateKeyOf(limit, limit?.weight) ?? {}
  } catch (error) {
    throw new HoldfastError('invalid_instance', `rate_limit: ${error instanceof Error ? error.message : String(error)}`)
  }
}

/** PostgreSQL has no year 0 and no offset of 16 hours. */
function instant(text: string): string {
  if (text.startsWith('0000') || /[+-](?:1[6-9]|2\d):\d\d$/.test(text))
    throw new HoldfastError('invalid_instance', `eligible_at: there is no such instant: ${text}`)
  return text
}

/** The JSON text of a field; `{}` where it was not sent. */
export function storable(value: unknown, what: string, code: 'invalid_instance' | 'invalid_signal' | 'invalid_schedule'): string {
  try {
    return storableJson(value === undefined ? {} : value, what)
  } catch (error) {
    if (!(error instanceof NotStorableError)) throw error
    throw new HoldfastError(error.reason === 'too_large' ? 'payload_too_large' : code, error.message)
  }
}

/** An id from a path. One that is no id is the id of nothing. */
export function instanceId(text: string): InstanceId {
  const parsed = InstanceIdSchema.safeParse(text)
  if (!parsed.success) throw noInstance(text)
  return parsed.data
}

export const noInstance = (id: string): HoldfastError =>
  new HoldfastError('not_found', `there is no instance ${id.slice(0, 40)} in this project`)
