// Every `ts` block of the pages compiles with the settings of the repository, as a module of its own. What a fragment leaves to its reader stands in a
// comment before it, and is compiled above it:  <!-- given: declare const token: string -->
import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ROOT } from '../end-to-end/running-system.ts'
import { allBlocks, BLOCKS_FOLDER } from './page-blocks.ts'

const blocks = allBlocks()
/** Or the tests below would pass with a compiler that sees nothing. */
const WRONG = `import { machine } from '@holdfast/engine'
export const typo = machine('typo', {
  steps: {
    start: (ctx) =>
      ctx.next('nowhere'),
  },
})
`
let folder: string
let said = ''

beforeAll(async () => {
  mkdirSync(BLOCKS_FOLDER, { recursive: true })
  folder = mkdtempSync(join(BLOCKS_FOLDER, 'run-'))
  for (const { file, text } of blocks) writeFileSync(join(folder, file), text)
  writeFileSync(join(folder, 'wrong.ts'), WRONG)
  const paths = {
    '@holdfast/examples': ['../../../examples/index.ts'],
    '@holdfast/testing': ['../../../packages/testing/src/index.ts'],
  }
  writeFileSync(
    join(folder, 'tsconfig.json'),
    JSON.stringify({
      extends: '../../../tsconfig.base.json',
      compilerOptions: { paths },
      files: ['wrong.ts', ...blocks.map(({ file }) => file)],
    }),
  )
  said = await new Promise((done) =>
    execFile(join(ROOT, 'node_modules/.bin/tsc'), ['-p', folder, '--pretty', 'false'], { cwd: folder }, (_error, out, err) =>
      done(out + err),
    ),
  )
})
afterAll(() => rmSync(folder, { recursive: true }))

test('the pages have blocks, and the compiler has looked at them', () => {
  expect(blocks.length).toBeGreaterThan(4)
  // Without a file: about the settings or the compiler itself. Errors in our own sources are told where the types are checked.
  expect(said.split('\n').filter((line) => line.startsWith('error'))).toEqual([])
})

test.each(blocks)('$place', ({ file, place }) => {
  const page = place.slice(0, place.lastIndexOf(':'))
  const errors = said.split('\n').filter((line) => line.startsWith(`${file}(`))
  expect(errors.map((line) => line.replace(/^[^(]*\((\d+),(\d+)\)/, `${page}:$1:$2`))).toEqual([])
})

test('a block that is wrong is found, at its line', () => {
  expect(said).toMatch(/^wrong\.ts\(5,\d+\): error .*nowhere/m)
})
