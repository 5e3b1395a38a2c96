import { expect, test } from 'vitest'
import { EnvironmentError, hostEnv, parseEnv } from '../src/index.ts'

const url = 'postgres://holdfast:s3cret@127.0.0.1/holdfast'

test('defaults are those of the documented table', () => {
  expect(parseEnv(hostEnv, { HOLDFAST_DATABASE_URL: url })).toMatchObject({
    HOLDFAST_PREPARE: 'on',
    HOLDFAST_POOL_MAX: 10,
    HOLDFAST_HEALTH_PORT: 0,
    HOLDFAST_HEALTH_HOST: '127.0.0.1',
    HOLDFAST_LOG_LEVEL: 'info',
    HOLDFAST_SHUTDOWN_MS: 25_000,
    HOLDFAST_PROCESS_BEAT_MS: 10_000,
  })
})

test('every wrong variable is named, with what was given and what is expected; a secret is never repeated', () => {
  const parse = (): unknown =>
    parseEnv(hostEnv, { HOLDFAST_DATABASE_URL: 'mysql://root:s3cret@db', HOLDFAST_POOL_MAX: 'many', HOLDFAST_PREPARE: 'perhaps' })
  expect(parse).toThrow(EnvironmentError)
  expect(parse).toThrow(/HOLDFAST_DATABASE_URL has a value that does not fit: .*postgres:\/\//)
  expect(parse).toThrow(/HOLDFAST_POOL_MAX is "many"/)
  expect(parse).toThrow(/HOLDFAST_PREPARE is "perhaps"/)
  expect(parse).not.toThrow(/s3cret/)
  expect(() => parseEnv(hostEnv, {})).toThrow(/HOLDFAST_DATABASE_URL is not set/)
})
