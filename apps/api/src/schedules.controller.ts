import {
  Channels,
  HoldfastError,
  PutScheduleRequest,
  type Schedule,
  type ScheduleList,
  ScheduleListQuery,
  ScheduleName,
} from '@holdfast/contracts'
import { CronClock, InvalidCronError } from '@holdfast/engine'
import { WirePipe } from '@holdfast/host'
import {
  deleteSchedule,
  getSchedule,
  type HintSender,
  listSchedules,
  lookBeforePut,
  putSchedule,
  type ScheduleRow,
  sqlState,
} from '@holdfast/queries'
import { Constraints, type Db } from '@holdfast/schema'
import { Body, Controller, Delete, Get, HttpCode, Inject, Param, Put, Query, Res, UseGuards } from '@nestjs/common'
import type { FastifyReply } from 'fastify'
import { storable } from './instance-wire.ts'
import { Caller, type Principal, ProjectGuard } from './principal.ts'
import { DB, HINTS } from './tokens.ts'

/** Each try meets a tick that was fired since the one before; there is one a second at most. */
const ATTEMPTS = 5
/** A tick further away than this is found by the look that schedulers take anyway. */
const HINT_WITHIN_MS = 5_000

@Controller('v1/schedules')
@UseGuards(ProjectGuard)
export class SchedulesController {
  readonly #db: Db
  readonly #hints: HintSender
  constructor(@Inject(DB) db: Db, @Inject(HINTS) hints: HintSender) {
    this.#db = db
    this.#hints = hints
  }

  @Put(':name')
  async put(
    @Param('name') name: string,
    @Body(new WirePipe(PutScheduleRequest, 'invalid_schedule')) body: PutScheduleRequest,
    @Caller() caller: Principal,
    @Res({ passthrough: true }) reply: FastifyReply,
  ): Promise<Schedule> {
    const named = ScheduleName.safeParse(name)
    if (!named.success) throw new HoldfastError('invalid_schedule', `name: ${named.error.issues[0]?.message ?? 'it does not fit'}`)
    const { created, ...row } = await this.#put(caller, named.data, body)
    void reply.status(created ? 201 : 200)
    return toSchedule(row)
  }

  @Get()
  async list(
    @Query(new WirePipe(ScheduleListQuery, 'invalid_schedule')) { limit, after }: ScheduleListQuery,
    @Caller() { projectId }: Principal,
  ): Promise<ScheduleList> {
    const rows = await listSchedules(this.#db, { projectId, limit, after })
    const last = rows.length === limit ? rows.at(-1) : undefined
    return { schedules: rows.map(toSchedule), ...(last === undefined ? {} : { next: last.name }) }
  }

  @Get(':name')
  async get(@Param('name') name: string, @Caller() { projectId }: Principal): Promise<Schedule> {
    const [row] = ScheduleName.safeParse(name).success ? await getSchedule(this.#db, { projectId, name }) : []
    if (row === undefined) throw noSchedule(name)
    return toSchedule(row)
  }

  @Delete(':name')
  @HttpCode(204)
  async delete(@Param('name') name: string, @Caller() { projectId }: Principal): Promise<void> {
    const [row] = ScheduleName.safeParse(name).success ? await deleteSchedule(this.#db, { projectId, name }) : []
    if (row === undefined) throw noSchedule(name)
  }

  async #put({ projectId }: Principal, name: string, body: PutScheduleRequest): Promise<ScheduleRow & { readonly created: boolean }> {
    const { cron, timezone, machine, version } = body
    const clock = clockOf(cron, timezone)
    const input = storable(body.input, 'input', 'invalid_schedule')
    for (let attempt = 1; ; attempt += 1) {
      const [before] = await lookBeforePut(this.#db, { projectId, name, machine, version })
      if (before === undefined) throw new Error('the database did not tell its time')
      if (before.unknown_machine) throw unknownMachine(machine, version)
      // Also where the clock of the database was set back: what has been fired stays behind.
      const from = before.last_at !== null && before.last_at > before.now ? before.last_at : before.now
      const nextAt = clock.after(from)
      if (nextAt === undefined)
        throw new HoldfastError(
          'invalid_schedule',
          `cron: ${JSON.stringify(cron)} never comes: no month has such a day; mend the day-of-month or the month field`,
        )
      try {
        const [row] = await putSchedule(this.#db, {
          projectId,
          name,
          cron,
          timezone,
          machine,
          version,
          input,
          queue: body.queue,
          priority: body.priority,
          concurrencyKey: body.concurrency_key,
          catchUp: body.catch_up,
          overlap: body.overlap,
          nextAt: body.paused ? undefined : nextAt,
        })
        if (row === undefined) throw new Error('a schedule was not stored')
        const inMs = nextAt.getTime() - before.now.getTime()
        if (!body.paused && inMs < HINT_WITHIN_MS) this.#hints.send(Channels.schedule, String(inMs))
        return row
      } catch (error) {
        // The tick was fired while its definition was under way; the next one is another.
        if (sqlState(error)?.constraint !== Constraints.scheduleNextIsAfterLast || attempt === ATTEMPTS) throw error
      }
    }
  }
}

function clockOf(cron: string, timezone: string): CronClock {
  try {
    return new CronClock(cron, timezone)
  } catch (error) {
    if (error instanceof InvalidCronError) throw new HoldfastError('invalid_schedule', error.message)
    throw error
  }
}

const unknownMachine = (machine: string, version: number | undefined): HoldfastError =>
  new HoldfastError(
    'unknown_machine',
    `no scheduler has declared the machine ${machine}${version === undefined ? '' : ` in version ${version}`}; nothing was stored. Deploy a scheduler that exports it, or mend the name`,
  )
const noSchedule = (name: string): HoldfastError =>
  new HoldfastError('not_found', `there is no schedule ${JSON.stringify(name.slice(0, 64))} in this project`)

const iso = (time: Date | null): string | null => time?.toISOString() ?? null

/** A row as the wire shows it. */
const toSchedule = (row: ScheduleRow): Schedule => ({
  name: row.name,
  cron: row.cron,
  timezone: row.timezone,
  machine: row.machine,
  version: row.version,
  input: row.input,
  queue: row.queue,
  priority: row.priority,
  concurrency_key: row.concurrency_key,
  catch_up: row.catch_up,
  overlap: row.overlap,
  paused: row.paused_at !== null,
  next_at: iso(row.next_at),
  last_at: iso(row.last_at),
  last_instance_id: row.last_instance_id,
  last_skipped: row.skipped_at === null || row.skipped_why === null ? null : { at: row.skipped_at.toISOString(), reason: row.skipped_why },
  last_error: row.last_error === null || row.last_error_at === null ? null : { ...row.last_error, at: row.last_error_at.toISOString() },
  created_at: row.created_at.toISOString(),
  updated_at: row.updated_at.toISOString(),
})
