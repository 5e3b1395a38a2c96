import { createLogger, Health, KNOWN_SCHEMA } from '@holdfast/host'
import { createProject, declareMachines, findProject, HintSender, hashToken, issueToken, newToken } from '@holdfast/queries'
import { connectOne, type Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { type Listeners, listen } from '../src/listen.ts'
import { InstanceWaits } from '@holdfast/engine'

type Access = 'read_only' | 'read_write'

export interface Answer {
  readonly status: number
  readonly headers: Headers
  // Whatever it is, a test says what it expects of it.
  // biome-ignore lint/suspicious/noExplicitAny: bodies of every endpoint
  readonly body: any
}

export interface Ask {
  /** Default: the read_write token of the project `default`. `null`: no authorization header. */
  readonly token?: string | null
  readonly body?: unknown
  /** Sent as it is, instead of `body`. */
  readonly raw?: string | Uint8Array<ArrayBuffer>
  readonly headers?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal
}

export interface ApiOptions {
  readonly poolMax?: number
  readonly maxRequests?: number
}

/** Both listeners on free ports, on a database of their own, connected as the role `holdfast_api` with nothing but its grants. */
export class ApiUnderTest {
  readonly database: TestDatabase
  /** The api's own connections; what goes through them can be counted. */
  readonly db: Db
  readonly listeners: Listeners
  readonly hints: HintSender
  readonly token: string
  readonly readOnly: string
  readonly operator: string
  /** JSON lines of the log, from `warn` on. */
  readonly log: string[]
  readonly #admin: Awaited<ReturnType<typeof connectOne>>

  private constructor(
    fields: Pick<ApiUnderTest, 'database' | 'db' | 'listeners' | 'hints' | 'token' | 'readOnly' | 'operator' | 'log'>,
    admin: Awaited<ReturnType<typeof connectOne>>,
  ) {
    this.database = fields.database
    this.db = fields.db
    this.listeners = fields.listeners
    this.hints = fields.hints
    this.token = fields.token
    this.readOnly = fields.readOnly
    this.operator = fields.operator
    this.log = fields.log
    this.#admin = admin
  }

  static async start({ poolMax = 4, maxRequests = 64 }: ApiOptions = {}): Promise<ApiUnderTest> {
    const database = await testDatabase()
    const db = database.connectAs('api', { max: poolMax })
    const log: string[] = []
    const hints = new HintSender({ db })
    const listeners = await listen({
      resources: { db, hints, waits: new InstanceWaits(db), health: new Health({ db, loops: () => [], knownSchema: KNOWN_SCHEMA }) },
      logger: createLogger({ role: 'api', level: 'warn', destination: { write: (line) => void log.push(line) } }),
      maxRequests,
      api: { host: '127.0.0.1', port: 0 },
      manage: { host: '127.0.0.1', port: 0 },
    })
    const admin = await connectOne({ connectionString: database.url })
    const token = await makeToken(database.db, 'default', 'read_write')
    const readOnly = await makeToken(database.db, 'default', 'read_only')
    const operator = newToken('operator')
    await issueToken(database.db, { projectId: null, access: 'operator', sha256: hashToken(operator), label: null })
    return new ApiUnderTest({ database, db, listeners, hints, token, readOnly, operator, log }, admin)
  }

  /** A token of another project, or a further one of this. */
  tokenFor(project: string, access: Access = 'read_write'): Promise<string> {
    return makeToken(this.database.db, project, access)
  }

  declare(...names: string[]): Promise<never[]> {
    return declareMachines(this.database.db, {
      machines: names.map((name) => ({ name, version: 1, queue: `${name}-queue`, maxReclaims: 5 })),
    })
  }

  api(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, ask: Ask = {}): Promise<Answer> {
    return send(this.listeners.apiUrl + path, method, this.token, ask)
  }

  manage(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, ask: Ask = {}): Promise<Answer> {
    return send(this.listeners.manageUrl + path, method, this.operator, ask)
  }

  async enqueue(body: object = {}): Promise<string> {
    const { status, body: answer } = await this.api('POST', '/v1/instances', { body: { machine: 'm', ...body } })
    if (status !== 201) throw new Error(`not inserted: ${JSON.stringify(answer)}`)
    return (answer as { id: string }).id
  }

  /** As superuser; the text is the test's own. */
  async query(text: string, values: readonly unknown[] = []): Promise<Record<string, unknown>[]> {
    return (await this.#admin.query<Record<string, unknown>>(text, [...values])).rows
  }

  async finish(id: string, result: unknown = null): Promise<void> {
    await this.query(`UPDATE holdfast.instance SET status = 'done', result = $2, updated_at = now() WHERE id = $1`, [
      id,
      JSON.stringify(result),
    ])
  }

  async park(id: string, ...names: string[]): Promise<void> {
    await this.query(`UPDATE holdfast.instance SET status = 'awaiting_signal', awaits = $2 WHERE id = $1`, [id, names])
  }

  /** Everything that a request could have changed. Two of these are equal when nothing was. */
  async rows(): Promise<Record<string, unknown>> {
    const [counts] = await this.query(`SELECT
      (SELECT count(*) FROM holdfast.instance) AS instances,
      (SELECT md5(string_agg(g::text, '|' ORDER BY id)) FROM holdfast.instance g) AS instance_rows,
      (SELECT count(*) FROM holdfast.signal) AS signals,
      (SELECT count(*) FROM holdfast.signal_receipt) AS receipts,
      (SELECT count(*) FROM holdfast.project) AS projects,
      (SELECT count(*) FROM holdfast.api_token) AS tokens,
      (SELECT count(*) FROM holdfast.api_token WHERE revoked_at IS NOT NULL) AS revoked,
      (SELECT md5(string_agg(s::text, '|' ORDER BY project_id, name)) FROM holdfast.schedule s) AS schedule_rows,
      (SELECT count(*) FROM holdfast.queue) AS queues`)
    return counts ?? {}
  }

  /** NOTIFYs as `channel:payload`, in the order in which they come. */
  async listenTo(channel: string): Promise<string[]> {
    const heard: string[] = []
    this.#admin.on('notification', (message) => void heard.push(`${message.channel}:${message.payload ?? ''}`))
    await this.#admin.query(`LISTEN ${channel}`)
    return heard
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.listeners.close()
    await this.hints.close()
    await this.#admin.end()
    await this.database[Symbol.asyncDispose]()
  }
}

async function makeToken(db: Db, project: string, access: Access): Promise<string> {
  await createProject(db, { name: project })
  const token = newToken(access)
  const [row] = await findProject(db, { name: project })
  await issueToken(db, { projectId: row?.id ?? null, access, sha256: hashToken(token), label: null })
  return token
}

async function send(url: string, method: string, defaultToken: string, ask: Ask): Promise<Answer> {
  const { token = defaultToken, body, raw, headers = {}, signal } = ask
  const sent = raw ?? (body === undefined ? undefined : JSON.stringify(body))
  const response = await fetch(url, {
    method,
    headers: {
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...(sent === undefined ? {} : { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(sent === undefined ? {} : { body: sent }),
    ...(signal === undefined ? {} : { signal }),
  })
  const text = await response.text()
  return { status: response.status, headers: response.headers, body: text === '' ? undefined : JSON.parse(text) }
}

/** A refusal, whole: its status, its code, and nothing but the one shape. */
export function refused(answer: Answer, status: number, code: string): string {
  const { error } = answer.body as { error?: { code?: string; message?: string } }
  const seen = { status: answer.status, code: error?.code }
  if (seen.status !== status || seen.code !== code)
    throw new Error(`expected ${status} ${code}, got ${JSON.stringify({ ...seen, body: answer.body })}`)
  if (typeof error?.message !== 'string' || error.message.length < 10)
    throw new Error(`a refusal without a reason: ${JSON.stringify(answer.body)}`)
  return error.message
}
