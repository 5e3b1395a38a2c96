import { z } from 'zod'
import { InstanceIdSchema } from './ids.ts'
import { Limits } from './limits.ts'
import { json } from './wire-json.ts'

const name = z.string().min(1).max(Limits.nameLength)

/** A schedule's name is part of paths and of keys. */
export const ScheduleName = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$/, 'expected 1 to 200 letters, digits, ., _ or -, beginning with a letter or a digit')

/** What becomes of ticks that passed while nothing could fire them. */
export const CatchUps = Object.freeze(['none', 'one', 'all'] as const)
export type CatchUp = (typeof CatchUps)[number]
/** What becomes of a tick while the run before is still live. */
export const Overlaps = Object.freeze(['allow', 'skip', 'queue'] as const)
export type Overlap = (typeof Overlaps)[number]

export const PutScheduleRequest = z
  .strictObject({
    cron: z
      .string()
      .min(1)
      .max(1_000)
      .describe(
        '`minute hour day-of-month month day-of-week`, seconds in front if there are six, or @hourly, @daily, @weekly, @monthly, @yearly.',
      ),
    timezone: z.string().min(1).max(100).default('UTC').describe('IANA name of the zone whose clock the cron text speaks of; default UTC.'),
    machine: name.describe('Machine or job that each tick inserts an instance of.'),
    input: json
      .optional()
      .describe(
        'State or input of each instance; default {}. A string in it that is `{{tick}}` and nothing else becomes the instant of the tick.',
      ),
    version: z
      .int()
      .min(1)
      .max(2_147_483_647)
      .optional()
      .describe('Version of the machine; default: the newest declared one when a tick fires.'),
    queue: name.optional().describe("Queue; default: the machine's own."),
    priority: z.int().min(Limits.priorityMin).max(Limits.priorityMax).default(0).describe('Lower runs first; default 0.'),
    concurrency_key: z.string().min(1).max(Limits.keyLength).optional().describe('As of an instance; not together with overlap `queue`.'),
    catch_up: z
      .enum(CatchUps)
      .default('none')
      .describe(
        'Ticks that passed while no scheduler ran. none: they are left out, but for the newest if it is at most a minute late; one: the newest is fired, however late; all: every one is fired, oldest first. Default none.',
      ),
    overlap: z
      .enum(Overlaps)
      .default('allow')
      .describe(
        'While a run of this schedule is live. allow: the next starts beside it; skip: the tick is left out; queue: steps of two runs never execute at once, and runs start in their order. Default allow.',
      ),
    paused: z.boolean().default(false).describe('A paused schedule has no next tick; resumed, it goes on with the first one after now.'),
  })
  .refine((body) => body.overlap !== 'queue' || body.concurrency_key === undefined, 'give overlap queue or a concurrency_key, not both')
  .meta({ id: 'PutScheduleRequest' })
export type PutScheduleRequest = z.infer<typeof PutScheduleRequest>

export const Schedule = z
  .strictObject({
    name: z.string(),
    cron: z.string(),
    timezone: z.string(),
    machine: z.string(),
    version: z.int().nullable(),
    input: json,
    queue: z.string().nullable(),
    priority: z.int(),
    concurrency_key: z.string().nullable(),
    catch_up: z.enum(CatchUps),
    overlap: z.enum(Overlaps),
    paused: z.boolean(),
    next_at: z.string().nullable().describe('The next tick; null while paused.'),
    last_at: z.string().nullable().describe('The newest tick that has made an instance.'),
    last_instance_id: InstanceIdSchema.nullable().describe('That instance; it may be past its retention.'),
    last_skipped: z
      .strictObject({ at: z.string(), reason: z.enum(['missed', 'overlap']) })
      .nullable()
      .describe('The newest tick that has made none, and why.'),
    last_error: z
      .strictObject({ code: z.string(), message: z.string(), at: z.string() })
      .nullable()
      .describe('Why the tick that is due cannot be fired; tried again after 10 seconds, later every 5 minutes.'),
    created_at: z.string(),
    updated_at: z.string().describe('Last change of the definition.'),
  })
  .meta({ id: 'Schedule' })
export type Schedule = z.infer<typeof Schedule>

export const ScheduleListQuery = z
  .strictObject({
    limit: z.coerce.number().int().min(1).max(Limits.listLimit).default(Limits.listLimit),
    after: ScheduleName.optional().describe('The `next` of the page before.'),
  })
  .meta({ id: 'ScheduleListQuery' })
export type ScheduleListQuery = z.infer<typeof ScheduleListQuery>

export const ScheduleList = z
  .strictObject({ schedules: z.array(Schedule).describe('By name.'), next: z.string().optional() })
  .meta({ id: 'ScheduleList' })
export type ScheduleList = z.infer<typeof ScheduleList>
