import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { findLayerViolations } from '../../tools/check-layers.ts'

const trees: string[] = []
afterEach(() => {
  for (const tree of trees.splice(0)) rmSync(tree, { recursive: true, force: true })
})

function tree(files: Readonly<Record<string, string>>): string {
  const root = mkdtempSync(join(tmpdir(), 'holdfast-layers-'))
  trees.push(root)
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, file)), { recursive: true })
    writeFileSync(join(root, file), text)
  }
  return root
}
const rulesOf = (files: Readonly<Record<string, string>>): string[] =>
  findLayerViolations(tree(files)).map(({ file, line, rule }) => `${file}:${line} ${rule}`)

const schemaManifest = { 'packages/schema/package.json': '{ "exports": { ".": "./src/index.ts" } }' }

test('an empty tree is a failure and no success', () => {
  expect(() => findLayerViolations(tree({}))).toThrow('looked at nothing')
})

test('a tree that keeps the rules passes', () => {
  expect(
    rulesOf({
      ...schemaManifest,
      'packages/contracts/src/index.ts': 'export const a = 1\n',
      'packages/queries/src/claim.ts': "import { connect } from '@holdfast/schema'\nconst text = sql`SELECT 1`\n",
      'apps/api/src/env.ts': 'export const port = process.env.PORT\n',
      'packages/engine/test/a.test.ts': "import { testDatabase } from '@holdfast/testing'\nsql`SELECT 1`\n",
    }),
  ).toEqual([])
})

test.each([
  ['an upward import', { 'packages/schema/src/a.ts': "import { claim } from '@holdfast/queries'\n" }, /imports point down only/],
  ['a sideways import', { 'packages/engine/src/a.ts': "import type { X } from '@holdfast/client'\n" }, /imports point down only/],
  ['an import of an app', { 'packages/host/src/a.ts': "import { x } from '@holdfast/api'\n" }, /nothing imports an app/],
  ['the test package outside of tests', { 'packages/engine/src/a.ts': "import { x } from '@holdfast/testing'\n" }, /only tests import/],
  [
    'a deep import',
    { ...schemaManifest, 'packages/queries/src/a.ts': `import { x } from '@holdfast/${'schema'}/src/connect.ts'\n` },
    /is not exported/,
  ],
  [
    'a path into another package',
    { 'packages/queries/src/a.ts': "import { x } from '../../schema/src/connect.ts'\n" },
    /leaves packages\/queries/,
  ],
  ['Nest below the host', { 'packages/engine/src/a.ts': "import { Module } from '@nestjs/common'\n" }, /Nest appears first/],
  ['the environment outside env.ts', { 'apps/api/src/main.ts': 'const port = process.env.PORT\n' }, /env\.ts only/],
  ['a SQL template outside queries', { 'packages/engine/src/a.ts': 'const q = sql<Row>`SELECT 1`\n' }, /SQL stands in/],
  ['SQL in a string', { 'apps/api/src/a.ts': "db.query('DELETE FROM holdfast.instance')\n" }, /SQL stands in/],
  ['a name that says nothing', { 'packages/engine/src/utils.ts': 'export const a = 1\n' }, /says nothing/],
  [
    'a dependency that points up',
    { 'packages/schema/src/a.ts': '', 'packages/schema/package.json': '{\n"dependencies": { "@holdfast/queries": "workspace:*" }\n}' },
    /imports point down only/,
  ],
] as const)('%s is found, with file and line', (_name, files, rule) => {
  const found = rulesOf(files)
  expect(found).toHaveLength(1)
  expect(found[0]).toMatch(rule)
  expect(found[0]).toMatch(/^(packages|apps)\/[\w/.-]+:\d+ /)
})
