import { newToken } from '@holdfast/queries'
import { expect, test } from 'vitest'
import { createLogger } from '../src/index.ts'

function lines(write: (log: ReturnType<typeof createLogger>) => void): { text: string; parsed: Record<string, unknown>[] } {
  const written: string[] = []
  write(createLogger({ role: 'api', level: 'debug', destination: { write: (line: string) => void written.push(line) } }))
  return { text: written.join(''), parsed: written.map((line) => JSON.parse(line) as Record<string, unknown>) }
}

test('a line is JSON with its level as a word, the role, and an error with its code', () => {
  const { parsed } = lines((log) => log.error({ err: Object.assign(new Error('no'), { code: '23505', constraint: 'x' }) }, 'it failed'))
  expect(parsed).toMatchObject([{ level: 'error', role: 'api', msg: 'it failed', err: { message: 'no', code: '23505', constraint: 'x' } }])
  expect(parsed[0]).not.toHaveProperty('trace_id')
})

test('no token and no password gets into a line, neither in a field nor inside a text', () => {
  const token = newToken('read_write')
  const { text } = lines((log) => {
    log.info({ headers: { authorization: `Bearer ${token}` }, token, password: 'hunter22' }, 'a request')
    log.warn({ err: new Error(`connect to postgres://app:hunter22@db.internal/x failed`) }, `used ${token}`)
    log.info({ nested: { url: 'postgres://app:hunter22@db.internal/x', token } }, 'nested')
  })
  expect(text).not.toContain(token)
  expect(text).not.toContain('hunter22')
  expect(text).toContain('[secret]')
})
