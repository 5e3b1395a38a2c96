import type { LimitList, LimitPolicy, PutRateLimitRequest } from '@holdfast/contracts'
import type { HttpTransport } from './http-transport.ts'

export interface RateLimitDefinition {
  /** Tokens that come back every period; 0: none ever. */
  readonly rate: number
  /** Default 1000: a rate per second. */
  readonly periodMs?: number
  /** Most tokens at once. Default: the rate, at least 1. */
  readonly burst?: number
  /** Rows that the bucket of a key is spread over. Default 1. */
  readonly shards?: number
}

/** The limits of a project; a change holds from the next claim on. */
export class LimitsClient {
  readonly #http: HttpTransport
  constructor(http: HttpTransport) {
    this.#http = http
  }

  async putRate(name: string, { rate, periodMs, burst, shards }: RateLimitDefinition): Promise<LimitPolicy> {
    const body: Partial<PutRateLimitRequest> & { rate: number } = {
      rate,
      ...(periodMs === undefined ? {} : { period: periodMs }),
      ...(burst === undefined ? {} : { burst }),
      ...(shards === undefined ? {} : { shards }),
    }
    return this.#put(`/v1/limits/rate/${encodeURIComponent(name)}`, body)
  }

  /** As many steps execute at once with one key as `capacity` says. */
  async putGate(name: string, { capacity }: { readonly capacity: number }): Promise<LimitPolicy> {
    return this.#put(`/v1/limits/gate/${encodeURIComponent(name)}`, { capacity })
  }

  async list(): Promise<LimitList['limits']> {
    const { body } = await this.#http.send<LimitList>({ method: 'GET', path: '/v1/limits', repeatable: true })
    return body.limits
  }

  async #put(path: string, body: object): Promise<LimitPolicy> {
    const { body: answer } = await this.#http.send<LimitPolicy>({ method: 'PUT', path, body, repeatable: true })
    return answer
  }
}
