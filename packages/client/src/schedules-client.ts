import type { CatchUp, MachineRef, Overlap, PutScheduleRequest, Schedule, ScheduleList, StateOf } from '@holdfast/contracts'
import type { HttpTransport } from './http-transport.ts'

export interface ScheduleDefinition<Machine extends MachineRef> {
  /** `minute hour day-of-month month day-of-week`, seconds in front if there are six, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. */
  readonly cron: string
  /** IANA name of the zone whose clock the cron text speaks of. Default UTC. */
  readonly timezone?: string
  readonly machine: Machine | string
  /** State or input of each instance; a string in it that is `{{tick}}` and nothing else becomes the instant of the tick. Default {}. */
  readonly input?: StateOf<Machine>
  /** Default: that of the machine if its definition is given, else the newest declared one when a tick fires. */
  readonly version?: number
  readonly queue?: string
  /** Lower runs first. Default 0. */
  readonly priority?: number
  readonly concurrencyKey?: string
  /** Ticks that passed while no scheduler ran: none of them, the newest one, or all. Default `none`. */
  readonly catchUp?: CatchUp
  /** A tick while the run before is live: runs beside it, is skipped, or waits. Default `allow`. */
  readonly overlap?: Overlap
  /** No tick until it is put again without. Default false. */
  readonly paused?: boolean
}

/** The cron schedules of the project; `client.schedules`. Every request may be sent twice, and is sent again by itself. */
export class SchedulesClient {
  readonly #http: HttpTransport

  constructor(http: HttpTransport) {
    this.#http = http
  }

  /**
   * Defines a schedule or replaces its definition; what is left out has its default again, and the next tick is the first one after now. Throws `invalid_schedule` with the field of the
   * cron text that is wrong, `unknown_machine` if no scheduler has declared the machine.
   */
  async put<Machine extends MachineRef>(name: string, definition: ScheduleDefinition<Machine>): Promise<Schedule> {
    const { body } = await this.#http.send<Schedule>({
      method: 'PUT',
      path: pathOf(name),
      body: definitionBody(definition),
      repeatable: true,
    })
    return body
  }

  /** Throws `not_found` if there is none. */
  async get(name: string): Promise<Schedule> {
    const { body } = await this.#http.send<Schedule>({ method: 'GET', path: pathOf(name), repeatable: true })
    return body
  }

  /** Schedules by name, fetched page by page as they are looked at. */
  async *list(): AsyncGenerator<Schedule, void, undefined> {
    let after: string | undefined
    do {
      const query = after === undefined ? '' : `?${new URLSearchParams({ after }).toString()}`
      const { body } = await this.#http.send<ScheduleList>({ method: 'GET', path: `/v1/schedules${query}`, repeatable: true })
      yield* body.schedules
      after = body.next
    } while (after !== undefined)
  }

  /** Deletes a schedule; the instances that it has made stay. Answers false if there was none, as after a deletion whose answer got lost. */
  async delete(name: string): Promise<boolean> {
    const { status } = await this.#http.send({ method: 'DELETE', path: pathOf(name), repeatable: true, accept: [404] })
    return status !== 404
  }
}

const pathOf = (name: string): string => `/v1/schedules/${encodeURIComponent(name)}`

/** The wire form; a machine that is given as a definition pins its version. */
function definitionBody<Machine extends MachineRef>(definition: ScheduleDefinition<Machine>): Partial<PutScheduleRequest> {
  const { cron, timezone, machine, input, queue, priority, concurrencyKey, catchUp, overlap, paused } = definition
  const version = definition.version ?? (typeof machine === 'string' ? undefined : machine.version)
  return {
    cron,
    machine: typeof machine === 'string' ? machine : machine.name,
    ...(timezone === undefined ? {} : { timezone }),
    ...(input === undefined ? {} : { input: input as NonNullable<PutScheduleRequest['input']> }),
    ...(version === undefined ? {} : { version }),
    ...(queue === undefined ? {} : { queue }),
    ...(priority === undefined ? {} : { priority }),
    ...(concurrencyKey === undefined ? {} : { concurrency_key: concurrencyKey }),
    ...(catchUp === undefined ? {} : { catch_up: catchUp }),
    ...(overlap === undefined ? {} : { overlap }),
    ...(paused === undefined ? {} : { paused }),
  }
}
