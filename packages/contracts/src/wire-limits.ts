import { z } from 'zod'
import { Limits } from './limits.ts'

/** A limit's name; a key is the name, or `name:partition`. */
export const LimitName = z
  .string()
  .min(1)
  .max(Limits.nameLength)
  .refine((name) => !name.includes(':') && !name.includes('\0'), 'a name has no colon (what follows one is the partition) and no NUL')

const most = 1_000_000_000
export const PutRateLimitRequest = z
  .strictObject({
    rate: z.int().min(0).max(most).describe('Tokens that come back every period; 0: none ever.'),
    period: z.int().min(1).max(31_536_000_000).default(1_000).describe('Milliseconds; default 1000: a rate per second.'),
    burst: z.int().min(1).max(most).optional().describe('Most tokens at once. Default: the rate, at least 1.'),
    shards: z
      .int()
      .min(1)
      .max(64)
      .default(1)
      .describe('Rows that the bucket of a key is spread over. One is right below some thousand grants a second.'),
  })
  .meta({ id: 'PutRateLimitRequest' })
export type PutRateLimitRequest = z.infer<typeof PutRateLimitRequest>

export const PutGateRequest = z
  .strictObject({ capacity: z.int().min(0).max(100_000).describe('Steps that execute at once with one key; 0: none.') })
  .meta({ id: 'PutGateRequest' })
export type PutGateRequest = z.infer<typeof PutGateRequest>

export const LimitPolicy = z
  .strictObject({
    kind: z.enum(['rate', 'gate']),
    name: z.string(),
    rate: z.int().optional(),
    period_ms: z.int().optional(),
    burst: z.int().optional(),
    shards: z.int().optional(),
    capacity: z.int().optional(),
    updated_at: z.string(),
  })
  .meta({ id: 'LimitPolicy' })
export type LimitPolicy = z.infer<typeof LimitPolicy>

export const LimitUse = LimitPolicy.extend({
  keys: z
    .array(
      z.strictObject({
        key: z.string(),
        held: z.int().optional().describe('Of a gate: steps that execute.'),
        tokens: z.int().optional().describe('Of a rate limit: whole tokens when it was last taken from.'),
        waiting: z.int().describe('Instances that it has denied and that wait for it.'),
      }),
    )
    .describe('Keys in use, at most 100 of each limit.'),
}).meta({ id: 'LimitUse' })
export const LimitList = z.strictObject({ limits: z.array(LimitUse) }).meta({ id: 'LimitList' })
export type LimitList = z.infer<typeof LimitList>
