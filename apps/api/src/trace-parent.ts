import { propagation, context } from '@opentelemetry/api'
import type { FastifyRequest } from 'fastify'

const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/

/** The trace that an instance or signal belongs to: the span of this request, or without tracing here what the client sent. */
export function traceParentOf(request: FastifyRequest): string | undefined {
  const carrier: { traceparent?: string } = {}
  propagation.inject(context.active(), carrier)
  if (carrier.traceparent !== undefined) return carrier.traceparent
  const sent = request.headers['traceparent']
  return typeof sent === 'string' && TRACEPARENT.test(sent) ? sent : undefined
}
