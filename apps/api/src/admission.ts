import { errorBody } from '@holdfast/host'
import type { FastifyInstance } from 'fastify'

/** Long polls hold no database connection, only a little memory; this many may wait at once. */
const MAX_WAITS = 10_000

/**
 * At most `maxRequests` at once on one listener, and for long polls a bound of their own; what does not fit is refused at once with 429 instead of queueing without
 * bound. Health and the OpenAPI document are always let in.
 */
export function limitRequests(server: FastifyInstance, maxRequests: number): void {
  const active = { request: 0, wait: 0 }
  const kinds = new WeakMap<object, keyof typeof active>()
  server.addHook('onRequest', (request, reply, done) => {
    const url = request.routeOptions.url ?? ''
    if (!url.startsWith('/v1') && !url.startsWith('/manage')) return done()
    const kind = url.endsWith('/wait') ? 'wait' : 'request'
    if (active[kind] >= (kind === 'wait' ? MAX_WAITS : maxRequests)) {
      void reply.status(429).header('retry-after', '1').send(errorBody('rate_limited', 'too many requests at once; try again in a second'))
      return
    }
    active[kind] += 1
    kinds.set(request, kind)
    // Fires for every end: an answer, an abort by the client, a time-out.
    reply.raw.once('close', () => {
      const counted = kinds.get(request)
      if (counted !== undefined) active[counted] -= 1
      kinds.delete(request)
    })
    done()
  })
}
