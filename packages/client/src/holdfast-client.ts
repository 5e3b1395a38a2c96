import { setTimeout as sleep } from 'node:timers/promises'
import {
  type BulkResponse,
  type EnqueueBatchResponse,
  type EnqueueResponse,
  type History,
  type Instance,
  type InstanceId,
  type InstanceList,
  type InstanceStatus,
  Limits,
  type MachineRef,
  type QueueList,
  type ResultOf,
  type SignalResponse,
  type SignalsOf,
  type StateOf,
} from '@holdfast/contracts'
import { HoldfastApiError, HoldfastUnreachableError, InstanceFailedError, WaitTimeoutError } from './client-errors.ts'
import { type Enqueue, type EnqueueOptions, enqueueBody } from './enqueue-options.ts'
import { type HttpOptions, HttpTransport } from './http-transport.ts'
import { LimitsClient } from './limits-client.ts'
import { SchedulesClient } from './schedules-client.ts'

/** All that is given has to match. */
export interface BulkFilter {
  readonly machine?: string
  readonly status?: Instance['status']
  readonly queue?: string
  readonly correlationKey?: string
  readonly parentId?: string
}

export interface BulkOptions {
  /** Kept with the instance, or in its history. */
  readonly reason?: string
  /** Default and most: 1,000. */
  readonly limit?: number
  /** `next` of the call before. */
  readonly after?: string
}

function bulkBody(filter: BulkFilter | 'all'): object {
  if (filter === 'all') return { all: true }
  const { correlationKey, parentId, ...rest } = filter
  return {
    filter: {
      ...rest,
      ...(correlationKey === undefined ? {} : { correlation_key: correlationKey }),
      ...(parentId === undefined ? {} : { parent_id: parentId }),
    },
  }
}

export interface ListFilter {
  readonly machine?: string
  readonly status?: InstanceStatus
  readonly queue?: string
  readonly correlationKey?: string
  readonly parentId?: InstanceId
  /** Instances in one request. Default 50, at most 500. */
  readonly pageSize?: number
}

export type SignalTarget = { readonly id: string } | { readonly correlationKey: string }

export interface WaitOptions {
  /** Default 5 minutes. */
  readonly timeoutMs?: number
}

export interface SignalOptions {
  /** A second delivery with the same key to the same instance is a no-op, also after the first was consumed. Makes the request safe to repeat. */
  readonly dedupKey?: string
}

/**
 * The API of Holdfast from TypeScript. Give it the machines themselves and states, signals and results are typed; a name works too.
 * Refusals are {@link HoldfastApiError}s with a stable `code`.
 *
 * A request is sent again by itself (after a refused connection or a 429 any; after a lost answer, 502, 503 or 504 only these) where that is safe: reads,
 * waits, and what carries a key. A `correlationKey` makes an enqueue safe for as long as the instance occupies it: one that may have ended before the
 * answer got lost needs a `correlationScope` that keeps the key.
 */
export class HoldfastClient {
  readonly #http: HttpTransport
  /** Cron schedules: `put`, `get`, `list`, `delete`. */
  readonly schedules: SchedulesClient
  readonly limits: LimitsClient

  constructor(options: HttpOptions) {
    this.#http = new HttpTransport(options)
    this.schedules = new SchedulesClient(this.#http)
    this.limits = new LimitsClient(this.#http)
  }

  /** Inserts an instance. `created` is false when its correlation key is occupied; `id` is then the occupant's. */
  async enqueue<Machine extends MachineRef>(
    machine: Machine | string,
    state?: StateOf<Machine>,
    options: EnqueueOptions = {},
  ): Promise<EnqueueResponse> {
    const body = enqueueBody(machine, state, options)
    const { body: answer } = await this.#http.send<EnqueueResponse>({
      method: 'POST',
      path: '/v1/instances',
      body,
      repeatable: options.correlationKey !== undefined,
    })
    return answer
  }

  /** Inserts up to 10,000 in one transaction; ids come back in the same order. */
  async enqueueMany<Machine extends MachineRef>(instances: readonly Enqueue<Machine>[]): Promise<EnqueueBatchResponse> {
    const body = { instances: instances.map(({ machine, state, ...options }) => enqueueBody(machine, state, options)) }
    const repeatable = instances.every(({ correlationKey }) => correlationKey !== undefined)
    const { body: answer } = await this.#http.send<EnqueueBatchResponse>({ method: 'POST', path: '/v1/instances/batch', body, repeatable })
    return answer
  }

  /** Puts a signal into the inbox of a live instance. Throws `not_found` when there is none: it has ended, or never was. */
  async signal<
    Machine extends MachineRef = MachineRef<unknown, unknown, Record<string, unknown>>,
    Name extends keyof SignalsOf<Machine> & string = keyof SignalsOf<Machine> & string,
  >(target: SignalTarget, name: Name, payload?: SignalsOf<Machine>[Name], options: SignalOptions = {}): Promise<SignalResponse> {
    const address = 'id' in target ? { id: target.id } : { correlation_key: target.correlationKey }
    const { dedupKey } = options
    const body = {
      ...address,
      name,
      ...(payload === undefined ? {} : { payload }),
      ...(dedupKey === undefined ? {} : { dedup_key: dedupKey }),
    }
    const { body: answer } = await this.#http.send<SignalResponse>({
      method: 'POST',
      path: '/v1/signals',
      body,
      repeatable: dedupKey !== undefined,
    })
    return answer
  }

  /**
   * Cancels a live instance and answers it: `cancelled`, or still executing with `cancel_requested_at` set, to end with its step.
   * Throws `instance_conflict` for one that has ended.
   */
  cancel(id: string, options: { readonly reason?: string } = {}): Promise<Instance> {
    return this.#act<Instance>(`/v1/instances/${encodeURIComponent(id)}/cancel`, options)
  }

  /** Lets a failed or cancelled instance go on at its step; the reason is kept in its history. Throws `instance_conflict` for any other. */
  retry(id: string, options: { readonly reason?: string } = {}): Promise<Instance> {
    return this.#act<Instance>(`/v1/instances/${encodeURIComponent(id)}/retry`, options)
  }

  /** Cancels the live instances that match, at most 1,000 in a call; call again with `next` as `after` while `more`. */
  cancelMany(filter: BulkFilter | 'all', options: BulkOptions = {}): Promise<BulkResponse> {
    return this.#act<BulkResponse>('/v1/instances/cancel', { ...bulkBody(filter), ...options })
  }

  /** Retries the failed and cancelled instances that match, at most 1,000 in a call; call again with `next` as `after` while `more`. */
  retryMany(filter: BulkFilter | 'all', options: BulkOptions = {}): Promise<BulkResponse> {
    return this.#act<BulkResponse>('/v1/instances/retry', { ...bulkBody(filter), ...options })
  }

  /** Not repeated by itself: a second try could meet what the first has done, and say that it failed. */
  async #act<Answer>(path: string, body: object): Promise<Answer> {
    const { body: answer } = await this.#http.send<Answer>({ method: 'POST', path, body, repeatable: false })
    return answer
  }

  async get(id: string): Promise<Instance> {
    const { body } = await this.#http.send<Instance>({ method: 'GET', path: `/v1/instances/${encodeURIComponent(id)}`, repeatable: true })
    return body
  }

  /** What it has done, oldest first. */
  async history(id: string): Promise<History['transitions']> {
    const { body } = await this.#http.send<History>({
      method: 'GET',
      path: `/v1/instances/${encodeURIComponent(id)}/history`,
      repeatable: true,
    })
    return body.transitions
  }

  /** Instances that match, newest first, fetched page by page as they are looked at. */
  async *list(filter: ListFilter = {}): AsyncGenerator<Instance, void, undefined> {
    let after: string | undefined
    do {
      const page = await this.page(filter, after)
      yield* page.instances
      after = page.next
    } while (after !== undefined)
  }

  /** One page; give its `next` as `after` for the one that follows. */
  async page(filter: ListFilter = {}, after?: string): Promise<InstanceList> {
    const query = new URLSearchParams()
    const { machine, status, queue, correlationKey, parentId, pageSize } = filter
    for (const [name, value] of Object.entries({
      machine,
      status,
      queue,
      correlation_key: correlationKey,
      parent_id: parentId,
      limit: pageSize,
      after,
    })) {
      if (value !== undefined) query.set(name, String(value))
    }
    const { body } = await this.#http.send<InstanceList>({ method: 'GET', path: `/v1/instances?${query.toString()}`, repeatable: true })
    return body
  }

  /**
   * Waits for the end of an instance and answers its result. Throws {@link InstanceFailedError} when it failed or was cancelled and
   * {@link WaitTimeoutError} when the time is over (default 5 minutes). An API that goes away in between, as for an upgrade, is waited for too.
   */
  async waitFor<Machine extends MachineRef = MachineRef>(id: string, options: WaitOptions = {}): Promise<ResultOf<Machine>> {
    const instance = await this.#wait(id, 'terminal', options)
    if (instance.status === 'done') return instance.result as ResultOf<Machine>
    throw new InstanceFailedError(instance)
  }

  /**
   * Waits until an instance has ended, or parked on a signal or on children, and answers it as it is then. Throws {@link WaitTimeoutError} when the
   * time is over (default 5 minutes); an end in failure is an answer here.
   */
  waitUntilSettled(id: string, options: WaitOptions = {}): Promise<Instance> {
    return this.#wait(id, 'settled', options)
  }

  /** The project's queues and what waits in them. */
  async queues(): Promise<QueueList['queues']> {
    const { body } = await this.#http.send<QueueList>({ method: 'GET', path: '/v1/queues', repeatable: true })
    return body.queues
  }

  /** Repeats the long poll until its own time is over. */
  async #wait(id: string, until: 'settled' | 'terminal', { timeoutMs = 300_000 }: WaitOptions): Promise<Instance> {
    const untilMs = performance.now() + timeoutMs
    let last: Instance | undefined
    do {
      const restMs = Math.max(0, Math.min(Limits.waitMs, Math.ceil(untilMs - performance.now())))
      try {
        const { status, body } = await this.#http.send<Instance & { instance?: Instance }>({
          method: 'POST',
          path: `/v1/instances/${encodeURIComponent(id)}/wait`,
          body: { timeout_ms: restMs, until },
          repeatable: true,
          extraMs: restMs,
          accept: [408],
        })
        if (status !== 408) return body
        last = body.instance
      } catch (error) {
        // An API that has answered once will be back; one that never has is a wrong address, and its caller should not wait to learn that.
        if (last === undefined || !isAway(error) || performance.now() >= untilMs) throw error
        await sleep(AWAY_PAUSE_MS)
      }
    } while (performance.now() < untilMs)
    throw new WaitTimeoutError(id, timeoutMs, last)
  }
}

const AWAY_PAUSE_MS = 500

const isAway = (error: unknown): boolean =>
  error instanceof HoldfastUnreachableError || (error instanceof HoldfastApiError && [502, 503, 504].includes(error.status))
