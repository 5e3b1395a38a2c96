import { createHttpApp, type Logger } from '@holdfast/host'
import type { NestFastifyApplication } from '@nestjs/platform-fastify'
import { limitRequests } from './admission.ts'
import { closeConnections } from './close-connections.ts'
import { ApiModule, type ApiResources, ManageModule } from './api.module.ts'

/** A batch of 10,000 instances with small states fits; the state of each one has a bound of its own. */
const BATCH_BODY_BYTES = 16_777_216
const BODY_BYTES = 1_048_576

export interface ListenOptions {
  readonly resources: ApiResources
  readonly logger: Logger
  readonly maxRequests: number
  readonly api: { readonly host: string; readonly port: number }
  readonly manage: { readonly host: string; readonly port: number }
}

export interface Listeners {
  readonly api: NestFastifyApplication
  readonly manage: NestFastifyApplication
  readonly apiUrl: string
  readonly manageUrl: string
  close(): Promise<void>
}

/** Opens the public and the management listener. Rejects with EADDRINUSE when a port is taken, and leaves none open then. */
export async function listen({ resources, logger, maxRequests, api, manage }: ListenOptions): Promise<Listeners> {
  const apiApp = await createHttpApp(ApiModule.with(resources), { logger, bodyLimit: BATCH_BODY_BYTES })
  const server = apiApp.getHttpAdapter().getInstance()
  limitRequests(server, maxRequests)
  // The parser's own limit is the batch's; every other route keeps to the smaller one, before its body is read.
  server.addHook('onRoute', (route) => {
    route.bodyLimit = route.url === '/v1/instances/batch' ? BATCH_BODY_BYTES : BODY_BYTES
  })
  const manageApp = await createHttpApp(ManageModule.with(resources), { logger, bodyLimit: BODY_BYTES })
  const manageServer = manageApp.getHttpAdapter().getInstance()
  // Counted apart, so that an operator gets in while the public listener is full.
  limitRequests(manageServer, maxRequests)
  const closeApi = closeConnections(server)
  const closeManage = closeConnections(manageServer)
  const close = async (): Promise<void> => {
    resources.waits.stop()
    await Promise.all([closeApi(() => apiApp.close()), closeManage(() => manageApp.close())])
  }
  try {
    await Promise.all([jsonOnly(apiApp), jsonOnly(manageApp)])
    await apiApp.listen(api.port, api.host)
    await manageApp.listen(manage.port, manage.host)
  } catch (error) {
    await close()
    throw error
  }
  return { api: apiApp, manage: manageApp, apiUrl: await apiApp.getUrl(), manageUrl: await manageApp.getUrl(), close }
}

/** Nest and Fastify also take forms and plain text, whose parsers are none of the strict one; any other type is refused by Fastify then. */
async function jsonOnly(app: NestFastifyApplication): Promise<void> {
  await app.init()
  app.getHttpAdapter().getInstance().removeContentTypeParser(['text/plain', 'application/x-www-form-urlencoded'])
}
