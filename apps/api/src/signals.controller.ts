import { Channels, HoldfastError, SignalRequest, type SignalResponse } from '@holdfast/contracts'
import { WirePipe } from '@holdfast/host'
import { deliverSignalById, deliverSignalByKey, type HintSender } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { Body, Controller, HttpCode, Inject, Post, Req, UseGuards } from '@nestjs/common'
import type { FastifyRequest } from 'fastify'
import { storable } from './instance-wire.ts'
import { Caller, type Principal, ProjectGuard } from './principal.ts'
import { DB, HINTS } from './tokens.ts'
import { traceParentOf } from './trace-parent.ts'

@Controller('v1/signals')
@UseGuards(ProjectGuard)
export class SignalsController {
  readonly #db: Db
  readonly #hints: HintSender
  constructor(@Inject(DB) db: Db, @Inject(HINTS) hints: HintSender) {
    this.#db = db
    this.#hints = hints
  }

  @Post()
  @HttpCode(202)
  async signal(
    @Body(new WirePipe(SignalRequest, 'invalid_signal')) body: SignalRequest,
    @Caller() { projectId }: Principal,
    @Req() request: FastifyRequest,
  ): Promise<SignalResponse> {
    const signal = {
      projectId,
      name: body.name,
      payload: storable(body.payload, 'payload', 'invalid_signal'),
      dedupKey: body.dedup_key,
      traceparent: traceParentOf(request),
    }
    const { id, correlation_key: correlationKey } = body
    const [delivered] =
      id === undefined
        ? await deliverSignalByKey(this.#db, { ...signal, correlationKey: correlationKey ?? '' })
        : await deliverSignalById(this.#db, { ...signal, id })
    if (delivered === undefined || delivered.target_id === null) {
      const target = id === undefined ? `with the correlation key ${JSON.stringify(correlationKey)}` : id
      throw new HoldfastError(
        'not_found',
        `there is no live instance ${target} in this project: it has ended, or there never was one. The signal was not stored`,
      )
    }
    if (delivered.queue !== null) this.#hints.send(Channels.runnable, delivered.queue)
    return { delivered: true, duplicate: delivered.duplicate }
  }
}
