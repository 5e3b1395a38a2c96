import { ErrorStatus } from '@holdfast/contracts'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { apiRoutes, manageRoutes } from '../src/routes.ts'
import { ApiUnderTest } from './api-under-test.ts'

interface Document {
  readonly openapi: string
  readonly paths: Record<string, Record<string, Operation>>
  readonly components: { readonly schemas: Record<string, unknown> }
}
interface Operation {
  readonly operationId: string
  readonly parameters?: readonly { name: string; in: string }[]
  readonly requestBody?: unknown
  readonly responses: Record<string, { description: string; content?: unknown }>
}

let api: ApiUnderTest
let documents: Record<'api' | 'manage', Document>
beforeAll(async () => {
  api = await ApiUnderTest.start()
  documents = {
    api: (await api.api('GET', '/openapi.json', { token: null })).body as Document,
    manage: (await api.manage('GET', '/openapi.json', { token: null })).body as Document,
  }
})
afterAll(() => api[Symbol.asyncDispose]())

/** What Fastify really routes, as `METHOD /path/{parameter}`; health and the document itself aside. */
async function routed(listener: 'api' | 'manage'): Promise<string[]> {
  const instance = listener === 'api' ? api.listeners.api : api.listeners.manage
  const found: string[] = []
  const walk = (text: string): void => {
    const stack: string[] = []
    for (const line of text.split('\n')) {
      const match = /^((?:│ {3}| {4})*)[├└]── (\S*)(?: \((.*)\))?$/.exec(line)
      if (match === null) continue
      const [, indent = '', part = '', methods] = match
      stack.length = indent.length / 4
      stack.push(part)
      for (const method of (methods ?? '').split(', ').filter((name) => ['GET', 'POST', 'PUT', 'DELETE'].includes(name)))
        found.push(`${method} ${stack.join('').replaceAll(/:(\w+)/g, '{$1}')}`)
    }
  }
  walk(instance.getHttpAdapter().getInstance().printRoutes({ commonPrefix: false }))
  return found.filter((route) => !/ \/(health|openapi)/.test(route)).sort()
}

describe.each(['api', 'manage'] as const)('the document of the %s listener', (listener) => {
  const routes = listener === 'api' ? apiRoutes : manageRoutes

  test('lists what is routed, no more and no less', async () => {
    const { openapi, paths } = documents[listener]
    expect(openapi).toBe('3.1.1')
    const listed = Object.entries(paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    )
    expect(listed.sort()).toEqual(await routed(listener))
    expect(listed.length).toBe(routes.length)
  })

  test('every operation tells its body, its parameters and every status that it may answer', () => {
    const { paths } = documents[listener]
    const ids = new Set<string>()
    for (const route of routes) {
      const operation = paths[route.path]?.[route.method]
      if (operation === undefined) throw new Error(`${route.path} is missing`)
      ids.add(operation.operationId)
      expect(operation.requestBody !== undefined).toBe(route.body !== undefined)
      const wanted = new Set([
        ...Object.keys(route.responses),
        '401',
        '429',
        '500',
        '503',
        ...route.refusals.map((code) => String(ErrorStatus[code])),
        ...(route.body === undefined ? [] : ['400', '413']),
      ])
      expect(Object.keys(operation.responses).sort()).toEqual([...wanted].sort())
      for (const name of [...route.path.matchAll(/\{(\w+)\}/g)].map(([, found]) => found))
        expect(operation.parameters).toContainEqual(expect.objectContaining({ name, in: 'path' }))
    }
    expect(ids.size).toBe(routes.length)
  })

  test('every reference leads somewhere', () => {
    const document = documents[listener]
    const references = [...JSON.stringify(document).matchAll(/"\$ref":"#\/([^"]+)"/g)].map(([, path]) => path ?? '')
    expect(references.length).toBeGreaterThan(5)
    for (const path of references) {
      const target = path.split('/').reduce<unknown>((at, part) => (at as Record<string, unknown> | undefined)?.[part], document)
      expect(target, path).toBeDefined()
    }
  })
})

test('both listeners answer for their health', async () => {
  for (const ask of [api.api.bind(api), api.manage.bind(api)]) {
    expect((await ask('GET', '/health/live', { token: null })).status).toBe(200)
    const ready = await ask('GET', '/health/ready', { token: null })
    expect([ready.status, ready.body]).toEqual([200, { status: 'ok', checks: { database: 'ok', stopping: 'ok' } }])
  }
})
