import 'reflect-metadata'
import { randomUUID } from 'node:crypto'
import { type ErrorCode, ErrorStatus, HoldfastError, NotStorableError } from '@holdfast/contracts'
import { isConnectionLoss, sqlState } from '@holdfast/queries'
import { type ArgumentsHost, type DynamicModule, type ExceptionFilter, HttpException, type PipeTransform } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify'
import { context } from '@opentelemetry/api'
import { getRPCMetadata } from '@opentelemetry/core'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { z } from 'zod'
import { type Logger, NestLogger } from './logger.ts'
import { parseStrictJson, StrictJsonError } from './strict-json.ts'
import { errorBody, WireException } from './wire-error.ts'

export interface HttpAppOptions {
  readonly logger: Logger
  /** Largest body in bytes. Default 1 MiB. */
  readonly bodyLimit?: number
}

const REQUEST_TIMEOUT_MS = 30_000

/** A Nest application on Fastify with strict bodies and one error shape, whatever goes wrong. */
export async function createHttpApp(
  module: DynamicModule,
  { logger, bodyLimit = 1_048_576 }: HttpAppOptions,
): Promise<NestFastifyApplication> {
  const adapter = new FastifyAdapter({
    bodyLimit,
    // Longer than the longest wait that a client may ask for; a body that trickles in slower than this is cut off.
    requestTimeout: REQUEST_TIMEOUT_MS,
    connectionTimeout: 0,
    keepAliveTimeout: 72_000,
    forceCloseConnections: 'idle',
    routerOptions: { maxParamLength: 1_024 },
    // A path that cannot be decoded, or a part of one that is too long for any id, names nothing.
    frameworkErrors: (_error: Error, request: FastifyRequest, reply: FastifyReply) => {
      void reply
        .status(404)
        .send(errorBody('not_found', `there is no ${request.method} ${request.url.slice(0, 200)}; /openapi.json lists what there is`))
    },
  })
  const app = await NestFactory.create<NestFastifyApplication>(module, adapter, { logger: new NestLogger(logger), abortOnError: false })
  app.useBodyParser(
    'application/json',
    { bodyLimit },
    (_request: unknown, body: Buffer, done: (error: Error | null, value?: unknown) => void) => {
      try {
        done(null, parseStrictJson(body))
      } catch (error) {
        done(error instanceof StrictJsonError ? new WireException('invalid_body', error.message) : (error as Error))
      }
    },
  )
  // Gives the HTTP span and the duration metric their route, which no instrumentation of Nest 12 does.
  app
    .getHttpAdapter()
    .getInstance()
    .addHook('onRequest', (request, _reply, done) => {
      const metadata = getRPCMetadata(context.active())
      if (metadata && request.routeOptions.url !== undefined) metadata.route = request.routeOptions.url
      done()
    })
  app.useGlobalFilters(new RefusalFilter(logger))
  return app
}

/**
 * Checks a body, a query or path parameters with the schema that documents them. An unknown field is `invalid_body` everywhere; anything else
 * that does not fit has the code of its route.
 */
export class WirePipe<Schema extends z.ZodType> implements PipeTransform<unknown, z.infer<Schema>> {
  readonly #schema: Schema
  readonly #code: ErrorCode
  constructor(schema: Schema, code: ErrorCode) {
    this.#schema = schema
    this.#code = code
  }
  transform(value: unknown): z.infer<Schema> {
    if (value === undefined)
      throw new HoldfastError('invalid_body', 'the request has no body; send one JSON object with content-type application/json')
    const parsed = this.#schema.safeParse(value)
    if (parsed.success) return parsed.data
    const { issues } = parsed.error
    const unknown = issues.some((issue) => issue.code === 'unrecognized_keys')
    const message = issues
      .slice(0, 5)
      .map((issue) => (issue.path.length === 0 ? issue.message : `${issue.path.map(String).join('.')}: ${issue.message}`))
      .join('; ')
    throw new HoldfastError(unknown ? 'invalid_body' : this.#code, message)
  }
}

/** Turns everything that is thrown into the one error shape, and tells a client nothing that only we should know. */
class RefusalFilter implements ExceptionFilter {
  readonly #logger: Logger
  constructor(logger: Logger) {
    this.#logger = logger
  }

  catch(error: unknown, host: ArgumentsHost): void {
    const reply = host.switchToHttp().getResponse<FastifyReply>()
    if (reply.sent) return
    const { code, message, body } = this.#refusal(error, host.switchToHttp().getRequest<FastifyRequest>())
    if (ErrorStatus[code] === 429 || ErrorStatus[code] === 503) void reply.header('retry-after', '1')
    void reply.status(ErrorStatus[code]).send(body ?? errorBody(code, message))
  }

  #refusal(error: unknown, request: FastifyRequest): { code: ErrorCode; message: string; body?: unknown } {
    if (error instanceof HoldfastError) return { code: error.code, message: error.message, body: (error as { body?: unknown }).body }
    if (error instanceof NotStorableError)
      return { code: error.reason === 'too_large' ? 'payload_too_large' : 'invalid_body', message: error.message }
    if (error instanceof HttpException) return httpRefusal(error, request)
    const fastify = fastifyRefusal(error)
    if (fastify !== undefined) return fastify
    if (isConnectionLoss(error)) {
      this.#logger.warn({ err: error }, 'a request found no database')
      return { code: 'no_database_capacity', message: 'the database has no connection to spare, or is away; try again in a second' }
    }
    const state = sqlState(error)?.state
    if (state === '57014') {
      this.#logger.warn({ err: error, route: request.routeOptions.url }, 'a request ran into the statement timeout')
      return { code: 'no_database_capacity', message: 'the database took too long; try again, or ask for less' }
    }
    // Class 22: a value that a type does not take. What comes in is checked before; this is the net below, and still the caller's input.
    if (state?.startsWith('22'))
      return { code: 'invalid_body', message: `a value in the request cannot be stored: ${(error as Error).message}` }
    const id = randomUUID()
    this.#logger.error({ err: error, error_id: id, method: request.method, route: request.routeOptions.url }, 'a request failed')
    return { code: 'internal', message: `something went wrong on our side; it is logged under ${id}` }
  }
}

function httpRefusal(error: HttpException, request: FastifyRequest): { code: ErrorCode; message: string; body?: unknown } {
  if (error instanceof WireException)
    return { code: (error.getResponse() as { error: { code: ErrorCode } }).error.code, message: error.message, body: error.getResponse() }
  switch (error.getStatus()) {
    case 404:
      return {
        code: 'not_found',
        message: `there is no ${request.method} ${request.url.split('?', 1)[0]}; /openapi.json lists what there is`,
      }
    case 413:
      return { code: 'payload_too_large', message: 'the body is too large for this endpoint; docs/http.md lists the bounds' }
    case 415:
      return { code: 'invalid_body', message: 'send the body with content-type application/json' }
    default:
      return { code: 'invalid_body', message: error.message }
  }
}

function fastifyRefusal(error: unknown): { code: ErrorCode; message: string } | undefined {
  const { code, message, statusCode } = error as { code?: string; message?: string; statusCode?: number }
  if (typeof code !== 'string' || !code.startsWith('FST_')) return undefined
  if (statusCode === 413)
    return { code: 'payload_too_large', message: 'the body is too large for this endpoint; docs/http.md lists the bounds' }
  if (statusCode === 415) return { code: 'invalid_body', message: 'send the body with content-type application/json' }
  return statusCode !== undefined && statusCode < 500 ? { code: 'invalid_body', message: message ?? code } : undefined
}
