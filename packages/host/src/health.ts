import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { getSchemaVersion } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import type { Loop } from './loop.ts'
import { metricsText } from './telemetry.ts'

export interface HealthOptions {
  readonly db: Db
  readonly loops: () => readonly Loop[]
  /** The newest migration that this code knows. */
  readonly knownSchema: number
}

export interface HealthReport {
  readonly status: 'ok' | 'failing'
  readonly checks: Readonly<Record<string, string>>
}

/** An answer of the database is good for this long, so that probes cost at most one statement in it, and none when nobody asks. */
const CACHE_MS = 2_000
const PROBE_TIMEOUT_MS = 1_000

/**
 * Live: the process is worth keeping: its loops turn. Ready: it can do its work now: the database answers, its schema is one that this code
 * can use, the loops run, and nobody has asked it to stop. A database that is away makes a process unready and not dead: restarting it would not help.
 */
export class Health {
  readonly #options: HealthOptions
  #stopping = false
  #database: { readonly atMs: number; readonly answer: Promise<string | null> } | undefined

  constructor(options: HealthOptions) {
    this.#options = options
  }

  stopping(): void {
    this.#stopping = true
  }

  live(): HealthReport {
    return report(Object.fromEntries(this.#options.loops().map((loop) => [loop.name, this.#stopping ? null : loop.isHealthy()])))
  }

  async ready(): Promise<HealthReport> {
    const loops = Object.fromEntries(this.#options.loops().map((loop) => [loop.name, loop.isHealthy()]))
    return report({ ...loops, database: await this.#askDatabase(), stopping: this.#stopping ? 'the process is stopping' : null })
  }

  #askDatabase(): Promise<string | null> {
    const nowMs = performance.now()
    if (this.#database === undefined || nowMs - this.#database.atMs > CACHE_MS) this.#database = { atMs: nowMs, answer: this.#probe() }
    return this.#database.answer
  }

  async #probe(): Promise<string | null> {
    const { db, knownSchema } = this.#options
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_resolve, reject) => {
      timer = setTimeout(() => reject(new Error(`no answer within ${PROBE_TIMEOUT_MS} ms`)), PROBE_TIMEOUT_MS)
    })
    try {
      const [schema] = await Promise.race([getSchemaVersion(db, { known: knownSchema }), late])
      if (schema === undefined || schema.version < knownSchema)
        return `the schema is at migration ${schema?.version ?? 0} and this code needs ${knownSchema}: run the migrations`
      if (!schema.newer_are_safe)
        return `the schema is at migration ${schema.version}, which this code (${knownSchema}) cannot use: deploy the newer version`
      return null
    } catch (error) {
      return error instanceof Error ? error.message : String(error)
    } finally {
      clearTimeout(timer)
    }
  }
}

function report(checks: Record<string, string | null>): HealthReport {
  const failing = Object.values(checks).some((reason) => reason !== null)
  return {
    status: failing ? 'failing' : 'ok',
    checks: Object.fromEntries(Object.entries(checks).map(([name, reason]) => [name, reason ?? 'ok'])),
  }
}

export interface HealthListener {
  readonly url: string
  close(): Promise<void>
}

/** /health/live, /health/ready and /metrics on a port of their own, outside Nest, so that they answer whatever the application does. */
export async function serveHealth(health: Health, { host, port }: { host: string; port: number }): Promise<HealthListener> {
  const server: Server = createServer((request, response) => {
    answer(health, request).then(
      ({ status, body, type }) => response.writeHead(status, { 'content-type': type }).end(body),
      (error: unknown) => respond(response, 500, String(error)),
    )
  })
  server.listen(port, host)
  await once(server, 'listening') // rejects with the error, EADDRINUSE among them
  const address = server.address() as AddressInfo
  return {
    url: `http://${address.address.includes(':') ? `[${address.address}]` : address.address}:${address.port}`,
    async close() {
      server.close()
      server.closeAllConnections()
      await once(server, 'close').catch(() => undefined)
    },
  }
}

const respond = (response: ServerResponse, status: number, body: string): void =>
  void response.writeHead(status, { 'content-type': 'text/plain' }).end(body)

async function answer(health: Health, request: IncomingMessage): Promise<{ status: number; body: string; type: string }> {
  const json = (found: HealthReport) => ({
    status: found.status === 'ok' ? 200 : 503,
    body: `${JSON.stringify(found)}\n`,
    type: 'application/json',
  })
  const [path = '/'] = (request.url ?? '/').split('?', 1)
  switch (path) {
    case '/health/live':
      return json(health.live())
    case '/health/ready':
      return json(await health.ready())
    case '/metrics':
      return { status: 200, body: await metricsText(), type: 'text/plain; version=0.0.4' }
    default:
      return { status: 404, body: 'not found; there is /health/live, /health/ready and /metrics\n', type: 'text/plain' }
  }
}
