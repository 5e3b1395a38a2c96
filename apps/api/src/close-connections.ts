import type { FastifyInstance } from 'fastify'

const SWEEP_MS = 50

/**
 * Makes the close of a server end when its requests do. A close waits for every connection, and ends by itself only those that have been idle since a
 * request: one that is kept alive after an answer given during the close would hold it up for 72 s, one that has never sent anything for 60 s.
 * Answers what `close` has to be called through.
 */
export function closeConnections(server: FastifyInstance): (close: () => Promise<void>) => Promise<void> {
  let inFlight = 0
  server.addHook('onRequest', (_request, reply, done) => {
    inFlight += 1
    reply.raw.once('close', () => (inFlight -= 1))
    done()
  })
  return async (close) => {
    const sweep = setInterval(() => {
      if (inFlight === 0) server.server.closeAllConnections()
    }, SWEEP_MS)
    try {
      await close()
    } finally {
      clearInterval(sweep)
    }
  }
}
