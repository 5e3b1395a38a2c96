import { CatchUps, Overlaps, type Schedule } from '@holdfast/contracts'
import type { Command } from 'commander'
import { fields, table } from '../answer.ts'
import { pathOf } from '../api.ts'
import { readJson } from '../argument.ts'
import { addCommand, addGroup, choice, type Context, type Host } from '../command.ts'
import type { GlobalOptions } from '../session.ts'

interface PutOptions {
  readonly cron: string
  readonly machine: string
  readonly timezone?: string
  readonly input?: string
  readonly catchUp?: string
  readonly overlap?: string
  readonly paused?: true
}

export function addSchedules(program: Command, host: Host): void {
  const list = {
    summary: 'Show, set and delete cron schedules',
    run: async ({ session }: Context, options: GlobalOptions) => {
      const { schedules } = await session.api(options).get<{ schedules: readonly Schedule[] }>('/v1/schedules')
      return { document: { schedules }, text: scheduleTable(schedules) }
    },
  }
  const put = `schedules put nightly-report --cron '0 3 * * *' --timezone Europe/Berlin --machine report --input '{"of":"yesterday"}'`
  const group = addGroup(program, host, { ...list, name: 'schedules', examples: ['schedules', put, 'schedules delete nightly-report'] })
  addCommand(group, host, { ...list, name: 'list', summary: 'Show schedules, the same as `schedules`', examples: ['schedules list'] })
  addCommand(group, host, {
    name: 'get',
    summary: 'Show one schedule',
    examples: ['schedules get nightly-report'],
    configure: (command) => command.argument('<name>', 'the schedule'),
    run: async ({ session }, options, [name]) =>
      scheduleAnswer(await session.api(options).get<Schedule>(pathOf`/v1/schedules/${String(name)}`)),
  })
  addCommand<PutOptions>(group, host, {
    name: 'put',
    summary: 'Set a schedule, whether it is there already or not',
    examples: [put],
    configure: (command) =>
      command
        .argument('<name>', 'the schedule')
        .requiredOption('--cron <expression>', `when: minute hour day month weekday, as in '0 3 * * 1-5'`)
        .requiredOption('--machine <name>', 'machine or job that is enqueued')
        .option('--timezone <zone>', 'whose clock that is; default UTC')
        .option('--input <json>', 'state or input of each: JSON, @file, or - for the standard input; default {}')
        .addOption(choice('--catch-up <how>', 'times that passed while nothing ran', CatchUps))
        .addOption(choice('--overlap <how>', 'a time that comes while the run before is live', Overlaps))
        .option('--paused', 'no times until it is put again without'),
    run: async ({ session }, options, [name]) => {
      const body = {
        cron: options.cron,
        machine: options.machine,
        ...(options.timezone === undefined ? {} : { timezone: options.timezone }),
        ...(options.input === undefined ? {} : { input: readJson(options.input, '--input') }),
        ...(options.catchUp === undefined ? {} : { catch_up: options.catchUp }),
        ...(options.overlap === undefined ? {} : { overlap: options.overlap }),
        ...(options.paused === undefined ? {} : { paused: options.paused }),
      }
      return scheduleAnswer(await session.api(options).put<Schedule>(pathOf`/v1/schedules/${String(name)}`, body))
    },
  })
  addCommand(group, host, {
    name: 'delete',
    summary: 'Delete a schedule; what it has enqueued stays',
    examples: ['schedules delete nightly-report'],
    configure: (command) => command.argument('<name>', 'the schedule'),
    run: async ({ session }, options, [name]) => {
      await session.api(options).delete(pathOf`/v1/schedules/${String(name)}`)
      return { document: { name, deleted: true }, text: `${String(name)} is deleted` }
    },
  })
}

const scheduleAnswer = (schedule: Schedule) => {
  const { name, cron, timezone, machine, input, catch_up: catchUp, overlap, last_instance_id: instance } = schedule
  return {
    document: schedule,
    text: fields({
      name,
      cron,
      timezone,
      machine,
      input,
      'catch up': catchUp,
      overlap,
      next: nextOf(schedule),
      last: schedule.last_at,
      instance,
      skipped: schedule.last_skipped && `${schedule.last_skipped.at} (${schedule.last_skipped.reason})`,
      error: schedule.last_error && `${schedule.last_error.code}: ${schedule.last_error.message}`,
    }),
  }
}

const nextOf = ({ paused, next_at: next }: Schedule): string | null => (paused ? 'paused' : next)

const scheduleTable = (schedules: readonly Schedule[]): string =>
  table(
    ['schedule', 'cron', 'time zone', 'machine', 'next', 'last', 'error'],
    schedules.map((schedule) => [
      schedule.name,
      schedule.cron,
      schedule.timezone,
      schedule.machine,
      nextOf(schedule),
      schedule.last_at,
      schedule.last_error?.code,
    ]),
    'no schedule is set',
  )
