import type { History, Instance } from '@holdfast/contracts'
import { age, fields, table } from '../answer.ts'

/** Everything that a person wants to know of one instance. */
export const instanceText = (instance: Instance): string =>
  fields({
    id: instance.id,
    machine: `${instance.machine}/${instance.version}`,
    status: instance.status,
    step: instance.step,
    attempt: instance.attempt,
    queue: instance.queue,
    priority: instance.priority,
    state: instance.state,
    result: instance.result,
    error: instance.error === null ? null : `${instance.error.code}: ${instance.error.message}`,
    awaits: instance.awaits?.join(', '),
    'await deadline': instance.await_deadline,
    'eligible at': instance.status === 'scheduled' ? instance.eligible_at : null,
    parent: instance.parent_id,
    'children pending': instance.children_pending > 0 ? instance.children_pending : null,
    'correlation key': instance.correlation_key,
    'concurrency key': instance.concurrency_key,
    trace: instance.trace_id,
    inserted: instance.inserted_at,
    updated: instance.updated_at,
  })

export const instanceTable = (instances: readonly Instance[]): string =>
  table(
    ['id', 'machine', 'status', 'step', 'attempt', 'queue', 'priority', 'key', 'updated'],
    instances.map((instance) => [
      instance.id,
      `${instance.machine}/${instance.version}`,
      instance.status,
      instance.step,
      instance.attempt,
      instance.queue,
      instance.priority,
      instance.correlation_key,
      instance.updated_at,
    ]),
    'no instance matches',
  )

export const historyTable = (transitions: History['transitions']): string =>
  table(
    ['step', 'try', 'answered', 'now', 'next step', 'took', 'by', 'at'],
    transitions.map((transition) => [
      transition.from_step,
      transition.attempt,
      transition.kind,
      transition.to_status,
      transition.to_step,
      tookMs(transition),
      transition.worker,
      transition.flushed_at,
    ]),
    'no history: nothing has been applied yet, the machine keeps none, or its days are over',
  )

function tookMs({ started_at: started, finished_at: finished }: History['transitions'][number]): string {
  return started === null || finished === null ? '' : age(Math.max(0, Date.parse(finished) - Date.parse(started)))
}
