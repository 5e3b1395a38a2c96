import { z } from 'zod'
import { InstanceIdSchema } from './ids.ts'
import { InstanceStatuses } from './instance-status.ts'
import { Limits } from './limits.ts'

const name = z.string().min(1).max(Limits.nameLength)
const key = z.string().min(1).max(Limits.keyLength)
const reason = z.string().min(1).max(2_000).optional().describe('Why, for people; kept with the instance.')

export const CancelRequest = z.strictObject({ reason }).meta({ id: 'CancelRequest' })
export type CancelRequest = z.infer<typeof CancelRequest>

export const RetryRequest = z.strictObject({ reason }).meta({ id: 'RetryRequest' })
export type RetryRequest = z.infer<typeof RetryRequest>

const bulkFields = {
  filter: z
    .strictObject({
      machine: name.optional(),
      status: z.enum(InstanceStatuses).optional(),
      queue: name.optional(),
      correlation_key: key.optional(),
      parent_id: InstanceIdSchema.optional(),
    })
    .optional()
    .describe('All that is given has to match.'),
  all: z.literal(true).optional().describe('Every instance of the project; instead of a filter.'),
  limit: z.int().min(1).max(Limits.bulkInstances).default(Limits.bulkInstances).describe('Most instances in one call.'),
  after: InstanceIdSchema.optional().describe('`next` of the call before: only older instances are looked at.'),
}
const says = (body: { filter?: object | undefined; all?: true | undefined }): boolean =>
  (body.all === true) !== (body.filter !== undefined && Object.keys(body.filter).length > 0)
const WHICH = 'give a filter with something in it, or all: true'

export const BulkCancelRequest = z
  .strictObject({ ...bulkFields, reason })
  .refine(says, WHICH)
  .meta({ id: 'BulkCancelRequest' })
export type BulkCancelRequest = z.infer<typeof BulkCancelRequest>

export const BulkRetryRequest = z
  .strictObject({ ...bulkFields, reason })
  .refine(says, WHICH)
  .meta({ id: 'BulkRetryRequest' })
export type BulkRetryRequest = z.infer<typeof BulkRetryRequest>

export const BulkResponse = z
  .strictObject({
    matched: z.int().describe('Instances that matched and could be cancelled or retried.'),
    ids: z.array(InstanceIdSchema).describe('Those that were.'),
    more: z.boolean().describe('There may be more that match: call again with `next` as `after`.'),
    next: InstanceIdSchema.optional().describe('Where to go on, while `more`.'),
  })
  .meta({ id: 'BulkResponse' })
export type BulkResponse = z.infer<typeof BulkResponse>
