import type { Health, HealthReport } from '@holdfast/host'
import { Controller, Get, Inject, type InjectionToken, Res } from '@nestjs/common'
import type { FastifyReply } from 'fastify'
import { HEALTH } from './tokens.ts'

export const OPENAPI: InjectionToken = Symbol('OPENAPI')

@Controller()
export class DocumentsController {
  readonly #document: object
  readonly #health: Health
  constructor(@Inject(OPENAPI) document: object, @Inject(HEALTH) health: Health) {
    this.#document = document
    this.#health = health
  }

  @Get('openapi.json')
  openapi(): object {
    return this.#document
  }

  @Get('health/live')
  live(@Res({ passthrough: true }) reply: FastifyReply): HealthReport {
    return answer(this.#health.live(), reply)
  }

  @Get('health/ready')
  async ready(@Res({ passthrough: true }) reply: FastifyReply): Promise<HealthReport> {
    return answer(await this.#health.ready(), reply)
  }
}

function answer(report: HealthReport, reply: FastifyReply): HealthReport {
  void reply.status(report.status === 'ok' ? 200 : 503)
  return report
}
