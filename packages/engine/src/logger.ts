/** What the engine writes its log lines to: pino and most others fit. */
export interface Logger {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
}

/** `ctx.log`: a line with the instance's fields added. */
export interface StepLogger {
  debug(message: string, fields?: object): void
  info(message: string, fields?: object): void
  warn(message: string, fields?: object): void
  error(message: string, fields?: object): void
}

export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} }

export class InstanceLogger implements StepLogger {
  readonly #logger: Logger
  readonly #fields: object
  constructor(logger: Logger, fields: object) {
    this.#logger = logger
    this.#fields = fields
  }
  debug(message: string, fields?: object): void {
    this.#logger.debug({ ...this.#fields, ...fields }, message)
  }
  info(message: string, fields?: object): void {
    this.#logger.info({ ...this.#fields, ...fields }, message)
  }
  warn(message: string, fields?: object): void {
    this.#logger.warn({ ...this.#fields, ...fields }, message)
  }
  error(message: string, fields?: object): void {
    this.#logger.error({ ...this.#fields, ...fields }, message)
  }
}
