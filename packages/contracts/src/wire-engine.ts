import { z } from 'zod'
import { MAX_DURATION_MS } from './duration.ts'
import { InstanceIdSchema } from './ids.ts'
import { InstanceStatuses, TerminalStatuses } from './instance-status.ts'
import { Limits } from './limits.ts'
import { OutcomeKinds } from './outcome.ts'
import { json } from './wire-json.ts'

const name = z.string().min(1).max(Limits.nameLength)
const key = z.string().min(1).max(Limits.keyLength)
const instant = z.iso.datetime({ offset: true })
export const ErrorBody = z
  .strictObject({ error: z.strictObject({ code: z.string(), message: z.string() }) })
  .meta({ id: 'Error', description: 'Every refusal has this shape; `code` is one of a closed, documented set.' })

/** One instance to insert. `state` and `input` are the same thing under the names of a machine and of a job. */
const instanceFields = {
  machine: name.describe('Name of the machine or job.'),
  state: json.optional().describe('Initial state of a machine; default {}.'),
  input: json.optional().describe('Input of a job; the same field as `state`, under its other name.'),
  version: z.int().min(1).max(2_147_483_647).optional().describe('Version of the machine; default: the newest declared one, else 1.'),
  queue: name.optional().describe("Queue; default: the machine's own, else `default`."),
  priority: z.int().min(Limits.priorityMin).max(Limits.priorityMax).optional().describe('Lower runs first; default 0.'),
  delay_ms: z.int().min(0).max(MAX_DURATION_MS).optional().describe('Start no earlier than this from now, by the clock of the database.'),
  eligible_at: instant.optional().describe('Start no earlier than this instant.'),
  correlation_key: key
    .optional()
    .describe('Business identity: at most one live instance of a project has it, and signals can be addressed to it.'),
  correlation_scope: z
    .array(z.enum(TerminalStatuses))
    .max(3)
    .optional()
    .describe('Terminal statuses in which the key stays occupied; default none.'),
  concurrency_key: key
    .optional()
    .describe(
      '`name` or `name:partition`. Where the project has a gate of that name, as many execute at once as it allows; otherwise one.',
    ),
  rate_limit: z
    .strictObject({
      name,
      partition: name.optional().describe('The limit holds for each partition by itself.'),
      weight: z.int().min(1).max(1_000_000_000).optional().describe('Tokens that the first step takes; default 1.'),
    })
    .optional()
    .describe('A rate limit of the project, for the first step.'),
}
const oneOf = (a: string, b: string) => `give ${a} or ${b}, not both`

export const EnqueueRequest = z
  .strictObject(instanceFields)
  .refine((body) => body.state === undefined || body.input === undefined, oneOf('state', 'input'))
  .refine((body) => body.delay_ms === undefined || body.eligible_at === undefined, oneOf('delay_ms', 'eligible_at'))
  .meta({ id: 'EnqueueRequest' })
export type EnqueueRequest = z.infer<typeof EnqueueRequest>

export const EnqueueResponse = z
  .strictObject({ id: InstanceIdSchema, created: z.boolean().describe('false: the correlation key is occupied, `id` is the occupant.') })
  .meta({ id: 'EnqueueResponse' })
export type EnqueueResponse = z.infer<typeof EnqueueResponse>

export const EnqueueBatchRequest = z
  .strictObject({ instances: z.array(EnqueueRequest).min(1).max(Limits.batchInstances) })
  .meta({ id: 'EnqueueBatchRequest' })
export type EnqueueBatchRequest = z.infer<typeof EnqueueBatchRequest>

export const EnqueueBatchResponse = z
  .strictObject({
    ids: z.array(InstanceIdSchema).describe('In the order of the request; for a duplicate, the id of the instance that occupies its key.'),
    created: z.int(),
    duplicates: z.int(),
  })
  .meta({ id: 'EnqueueBatchResponse' })
export type EnqueueBatchResponse = z.infer<typeof EnqueueBatchResponse>

export const Instance = z
  .strictObject({
    id: InstanceIdSchema,
    machine: z.string(),
    version: z.int(),
    step: z.string(),
    status: z.enum(InstanceStatuses),
    state: json,
    result: json.nullable(),
    error: z.strictObject({ code: z.string(), message: z.string(), stack: z.string().optional(), details: json.optional() }).nullable(),
    attempt: z.int().describe('0 for the first try of the current step.'),
    queue: z.string(),
    priority: z.int(),
    eligible_at: z.string(),
    awaits: z.array(z.string()).nullable(),
    await_deadline: z.string().nullable(),
    parent_id: InstanceIdSchema.nullable(),
    children_pending: z.int(),
    correlation_key: z.string().nullable(),
    concurrency_key: z.string().nullable(),
    rate_limit: z
      .strictObject({ key: z.string().describe('`name` or `name:partition`.'), weight: z.int() })
      .nullable()
      .describe('Of the current step.'),
    throttled_until: z.string().nullable().describe('When a rate limit will let it go; null also where a key has denied it.'),
    cancel_requested_at: z.string().nullable().describe('It was cancelled while its step ran, and ends with that step.'),
    trace_id: z.string().nullable(),
    inserted_at: z.string(),
    updated_at: z.string(),
  })
  .meta({ id: 'Instance' })
export type Instance = z.infer<typeof Instance>

export const InstanceListQuery = z
  .strictObject({
    machine: name.optional(),
    status: z.enum(InstanceStatuses).optional(),
    queue: name.optional(),
    correlation_key: key.optional(),
    parent_id: InstanceIdSchema.optional(),
    limit: z.coerce.number().int().min(1).max(Limits.listLimit).default(50),
    after: InstanceIdSchema.optional().describe('The `next` of the page before.'),
  })
  .meta({ id: 'InstanceListQuery' })
export type InstanceListQuery = z.infer<typeof InstanceListQuery>

export const InstanceList = z
  .strictObject({ instances: z.array(Instance).describe('Newest first.'), next: InstanceIdSchema.optional() })
  .meta({ id: 'InstanceList' })
export type InstanceList = z.infer<typeof InstanceList>

export const Transition = z
  .strictObject({
    kind: z.enum(OutcomeKinds),
    from_step: z.string(),
    to_step: z.string().nullable(),
    to_status: z.enum(InstanceStatuses),
    attempt: z.int(),
    claim_epoch: z.string(),
    worker: z.string().nullable(),
    error: json.nullable(),
    claimed_at: z.string().nullable(),
    started_at: z.string().nullable(),
    finished_at: z.string().nullable(),
    flushed_at: z.string(),
  })
  .meta({ id: 'Transition' })
export const History = z.strictObject({ transitions: z.array(Transition).describe('Oldest first.') }).meta({ id: 'History' })
export type History = z.infer<typeof History>

export const WaitRequest = z
  .strictObject({
    timeout_ms: z.int().min(0).max(Limits.waitMs).default(Limits.waitMs),
    until: z.enum(['settled', 'terminal']).default('terminal').describe('settled: terminal, or parked on a signal or on children.'),
  })
  .meta({ id: 'WaitRequest' })
export type WaitRequest = z.infer<typeof WaitRequest>

export const SignalRequest = z
  .strictObject({
    id: InstanceIdSchema.optional(),
    correlation_key: key.optional(),
    name: name.describe('Name of the signal.'),
    payload: json.optional().describe('Default {}.'),
    dedup_key: key
      .optional()
      .describe('A second delivery with the same key to the same instance is a no-op, also after the first was consumed.'),
  })
  .refine((body) => (body.id === undefined) !== (body.correlation_key === undefined), 'give exactly one of id and correlation_key')
  .meta({ id: 'SignalRequest' })
export type SignalRequest = z.infer<typeof SignalRequest>

export const SignalResponse = z.strictObject({ delivered: z.literal(true), duplicate: z.boolean() }).meta({ id: 'SignalResponse' })
export type SignalResponse = z.infer<typeof SignalResponse>

export const QueueDepth = z
  .strictObject({
    queue: z.string(),
    paused: z.boolean(),
    depth: z.partialRecord(z.enum(InstanceStatuses), z.int()).describe('Live instances by status; statuses with none are left out.'),
    oldest_runnable_ms: z.int().nullable().describe('How long the oldest runnable instance has been waiting.'),
    unclaimable: z.int().describe('Runnable instances of a machine and version that no scheduler has had for five minutes.'),
  })
  .meta({ id: 'QueueDepth' })
export const QueueList = z.strictObject({ queues: z.array(QueueDepth) }).meta({ id: 'QueueList' })
export type QueueList = z.infer<typeof QueueList>

export const NotSettled = z
  .strictObject({ error: z.strictObject({ code: z.literal('not_settled'), message: z.string() }), instance: Instance })
  .meta({ id: 'NotSettled' })
