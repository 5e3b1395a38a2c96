import type { LoggerService } from '@nestjs/common'
import { isSpanContextValid, trace } from '@opentelemetry/api'
import { type DestinationStream, type Logger, pino } from 'pino'

export type { Logger } from 'pino'

export interface LoggerOptions {
  readonly role: string
  readonly level: string
  readonly destination?: DestinationStream
}

/** A token of ours, or the password in a URL, wherever it stands in a text. */
const SECRETS = /\bhf_(rw|ro|op)_[\w-]+|(?<=:\/\/[^\s:/@]*:)[^\s@/]+(?=@)/g
const cleaned = (text: string): string => text.replaceAll(SECRETS, '[secret]')

/** JSON lines with the role, the trace of the moment, and no secret: neither in a known field nor inside a text. */
export function createLogger({ role, level, destination }: LoggerOptions): Logger {
  const options = {
    level,
    base: { role },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label: string) => ({ level: label }) },
    redact: {
      paths: ['authorization', 'token', 'password', '*.authorization', '*.token', '*.password', 'headers.authorization'],
      censor: '[secret]',
    },
    serializers: { err: serializeError },
    mixin: () => {
      const context = trace.getActiveSpan()?.spanContext()
      return context === undefined || !isSpanContextValid(context) ? {} : { trace_id: context.traceId, span_id: context.spanId }
    },
    hooks: {
      streamWrite: cleaned,
    },
  }
  return destination === undefined ? pino(options) : pino(options, destination)
}

function serializeError(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  const { code, constraint, detail } = error as { code?: unknown; constraint?: unknown; detail?: unknown }
  return {
    type: error.name,
    message: error.message,
    ...(code === undefined ? {} : { code }),
    ...(constraint === undefined ? {} : { constraint }),
    ...(detail === undefined ? {} : { detail }),
    stack: error.stack,
  }
}

/** Nest's own lines, in the same form. */
export class NestLogger implements LoggerService {
  readonly #logger: Logger
  constructor(logger: Logger) {
    this.#logger = logger
  }
  log(message: unknown, ...rest: unknown[]): void {
    this.#logger.debug({ nest: rest }, String(message))
  }
  error(message: unknown, ...rest: unknown[]): void {
    this.#logger.error({ nest: rest }, String(message))
  }
  warn(message: unknown, ...rest: unknown[]): void {
    this.#logger.warn({ nest: rest }, String(message))
  }
  debug(message: unknown, ...rest: unknown[]): void {
    this.#logger.debug({ nest: rest }, String(message))
  }
}
