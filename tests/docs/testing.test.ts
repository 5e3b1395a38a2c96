import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const read = (file: string): string => readFileSync(join(import.meta.dirname, '../..', file), 'utf8')

test('testing.md begins with the example that runs', () => {
  const [, first] = /```ts\n([^]*?)```/.exec(read('docs/testing.md')) ?? []
  expect(first).toBe(read('examples/test/checkout.test.ts'))
})
