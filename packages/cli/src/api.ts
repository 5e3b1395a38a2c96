import { type HttpOptions, HttpTransport } from '@holdfast/client'

/** Whatever the client has no method for, by its path; answers are typed by whoever asks. Refusals are HoldfastApiErrors. */
export class Api {
  readonly #http: HttpTransport

  constructor(options: HttpOptions) {
    this.#http = new HttpTransport(options)
  }

  get<Answer>(path: string): Promise<Answer> {
    return this.#send<Answer>('GET', path)
  }

  /** Sent again after a lost answer only where that is safe, as it is with a key; otherwise a person has to find out whether it was carried out. */
  post<Answer>(path: string, body: object = {}, { repeatable = false }: { readonly repeatable?: boolean } = {}): Promise<Answer> {
    return this.#send<Answer>('POST', path, body, repeatable)
  }

  put<Answer>(path: string, body: object): Promise<Answer> {
    return this.#send<Answer>('PUT', path, body)
  }

  delete<Answer>(path: string): Promise<Answer> {
    return this.#send<Answer>('DELETE', path)
  }

  async #send<Answer>(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, body?: object, repeatable = true): Promise<Answer> {
    const call = { method, path, repeatable, ...(body === undefined ? {} : { body }) }
    return (await this.#http.send<Answer>(call)).body
  }
}

/** A path of literal parts and values; each value is one segment, whatever it holds. */
export const pathOf = (parts: TemplateStringsArray, ...values: readonly string[]): string =>
  parts.reduce((path, part, index) => path + encodeURIComponent(values[index - 1] ?? '') + part)
