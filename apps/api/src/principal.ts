import { HoldfastError, type ProjectId } from '@holdfast/contracts'
import { authenticate, BEARER_TOKEN, hashToken } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type CanActivate, createParamDecorator, type ExecutionContext, Inject } from '@nestjs/common'
import type { FastifyRequest } from 'fastify'
import { DB } from './tokens.ts'

/** Who asks: a project's token. */
export interface Principal {
  readonly projectId: ProjectId
  readonly project: string
  readonly access: 'read_only' | 'read_write'
}

type WithPrincipal = FastifyRequest & { principal?: Principal }

// One answer for a missing, malformed, unknown or revoked token, a suspended project and a token of the other listener: who tries learns nothing.
const unauthenticated = (): HoldfastError => new HoldfastError('unauthenticated', 'send a valid bearer token in the authorization header')

async function lookUp(db: Db, request: FastifyRequest): Promise<Awaited<ReturnType<typeof authenticate>>[number]> {
  const [scheme, token] = (request.headers.authorization ?? '').split(' ')
  if (scheme?.toLowerCase() !== 'bearer' || token === undefined || !BEARER_TOKEN.test(token)) throw unauthenticated()
  // Looked up by the hash, in an index: there is no secret to compare, and so nothing that timing could tell.
  const [row] = await authenticate(db, { sha256: hashToken(token) })
  if (row === undefined) throw unauthenticated()
  return row
}

/** Lets a project's tokens in: read-only ones to what does not write. */
export class ProjectGuard implements CanActivate {
  readonly #db: Db
  constructor(@Inject(DB) db: Db) {
    this.#db = db
  }
  async canActivate(context: ExecutionContext): Promise<boolean> {
    const request = context.switchToHttp().getRequest<WithPrincipal>()
    const { access, project_id: projectId, project } = await lookUp(this.#db, request)
    if (access === 'operator' || projectId === null || project === null) throw unauthenticated()
    const writes = request.method !== 'GET' && !request.routeOptions.url?.endsWith('/wait')
    if (writes && access === 'read_only') throw new HoldfastError('forbidden', 'this token may only read; use a read_write token')
    request.principal = { projectId, project, access }
    return true
  }
}

/** Lets operators in, and nobody else. */
export class OperatorGuard implements CanActivate {
  readonly #db: Db
  constructor(@Inject(DB) db: Db) {
    this.#db = db
  }
  async canActivate(context: ExecutionContext): Promise<boolean> {
    const { access } = await lookUp(this.#db, context.switchToHttp().getRequest<FastifyRequest>())
    if (access !== 'operator') throw unauthenticated()
    return true
  }
}

/** The principal that {@link ProjectGuard} has let in. */
export const Caller: () => ParameterDecorator = createParamDecorator((_data: unknown, context: ExecutionContext): Principal => {
  const { principal } = context.switchToHttp().getRequest<WithPrincipal>()
  if (principal === undefined) throw new Error('a route asks for its caller and has no guard')
  return principal
})
