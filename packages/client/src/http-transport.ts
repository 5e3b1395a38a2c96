import { setTimeout as sleep } from 'node:timers/promises'
import { HoldfastApiError, HoldfastUnreachableError } from './client-errors.ts'

export interface HttpOptions {
  /** Of the API, as in `http://127.0.0.1:7400`. */
  readonly url: string
  readonly token: string
  /** One request, its answer included. Default 30 s; long polls have their own time on top. */
  readonly timeoutMs?: number
  /** Further tries of a request that may safely be sent again. Default 3. */
  readonly retries?: number
  readonly fetch?: typeof globalThis.fetch
}

export interface Call {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  readonly path: string
  readonly body?: unknown
  /** Sending it twice has the effect of sending it once: a read, or something with a key of its own. */
  readonly repeatable: boolean
  readonly extraMs?: number
  /** Statuses that are answers and not refusals. */
  readonly accept?: readonly number[]
}

// 429 is a refusal before anything was done, whatever the request was. A 503 may be the answer to a statement whose connection was lost after it had
// been committed, and 502 and 504 are those of something in between that does not know either.
const REFUSED_BEFORE = 429
const UNKNOWN: ReadonlySet<number> = new Set([502, 503, 504])

/** Sends requests, again where that is safe, and turns refusals into errors. */
export class HttpTransport {
  readonly #options: HttpOptions
  readonly #url: string

  constructor(options: HttpOptions) {
    this.#options = options
    this.#url = options.url.replace(/\/+$/, '')
  }

  async send<Answer>(call: Call): Promise<{ status: number; body: Answer }> {
    const retries = this.#options.retries ?? 3
    for (let attempt = 0; ; attempt += 1) {
      const last = attempt >= retries
      try {
        const response = await this.#fetch(call)
        if (!last && (response.status === REFUSED_BEFORE || (call.repeatable && UNKNOWN.has(response.status)))) {
          await response.body?.cancel()
          await this.#pause(attempt, Number(response.headers.get('retry-after')))
          continue
        }
        return { status: response.status, body: await this.#answer<Answer>(call, response) }
      } catch (error) {
        if (error instanceof HoldfastApiError) throw error
        if (last || !(call.repeatable || refusedToConnect(error))) {
          throw new HoldfastUnreachableError(
            `${call.method} ${this.#url}${call.path} got no answer: ${reason(error)}. ${refusedToConnect(error) ? 'Is the API running there?' : call.repeatable ? 'It may be sent again' : 'Whether it was carried out is unknown; give it a key, and it is sent again by itself'}`,
            { cause: error },
          )
        }
        await this.#pause(attempt, Number.NaN)
      }
    }
  }

  #fetch({ method, path, body, extraMs = 0 }: Call): Promise<Response> {
    const { token, timeoutMs = 30_000, fetch = globalThis.fetch } = this.#options
    return fetch(this.#url + path, {
      method,
      headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(timeoutMs + extraMs),
    })
  }

  async #answer<Answer>(call: Call, response: Response): Promise<Answer> {
    const text = await response.text()
    if (response.status === 204) return undefined as Answer
    let parsed: unknown
    try {
      parsed = JSON.parse(text)
    } catch {
      throw new HoldfastApiError(
        'internal',
        response.status,
        `${call.method} ${call.path} answered ${response.status} with something that is not JSON: ${text.slice(0, 200)}`,
      )
    }
    if (response.ok || call.accept?.includes(response.status) === true) return parsed as Answer
    const { error } = parsed as { error?: { code?: string; message?: string } }
    throw new HoldfastApiError(error?.code ?? 'internal', response.status, error?.message ?? text.slice(0, 200))
  }

  async #pause(attempt: number, retryAfterS: number): Promise<void> {
    const backoffMs = 100 * 2 ** attempt * (0.5 + Math.random())
    await sleep(Number.isFinite(retryAfterS) && retryAfterS > 0 ? Math.max(backoffMs, retryAfterS * 1_000 * Math.random()) : backoffMs)
  }
}

// fetch hides the reason in `cause`. A connection that was refused has carried nothing.
function refusedToConnect(error: unknown): boolean {
  const { cause } = error as { cause?: { code?: string; errors?: { code?: string }[] } }
  return [cause, ...(cause?.errors ?? [])].some((inner) => inner?.code === 'ECONNREFUSED')
}

function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { cause } = error
  return cause instanceof Error ? `${error.message} (${cause.message})` : error.message
}
