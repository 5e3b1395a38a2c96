import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { findLayerViolations } from '../../tools/check-layers.ts'

const trees: string[] = []
afterEach(() => {
  for (const tree of trees.splice(0)) rmSync(tree, { recursive: true, force: true })
})

type Files = Readonly<Record<string, string>>

function tree(files: Files): string {
  const root = mkdtempSync(join(tmpdir(), 'holdfast-layers-'))
  trees.push(root)
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, file)), { recursive: true })
    writeFileSync(join(root, file), text)
  }
  return root
}
const rulesOf = (files: Files): string[] => findLayerViolations(tree(files)).map(({ file, line, rule }) => `${file}:${line} ${rule}`)

const schemaManifest = { 'packages/schema/package.json': '{ "exports": { ".": "./src/index.ts", "./role": "./src/role.ts" } }' }
const manifest = (key: string, dependency: string): string => `{\n  "${key}": {\n    "${dependency}": "workspace:*"\n  }\n}`

test('an empty tree is a failure and no success', () => {
  expect(() => findLayerViolations(tree({}))).toThrow('looked at nothing')
  expect(() => findLayerViolations(tree({ 'packages/engine/README.md': '' }))).toThrow('looked at nothing')
})

test('a file that cannot be parsed is a failure, since it was not looked at', () => {
  expect(() => findLayerViolations(tree({ 'packages/engine/src/a.ts': 'import {' }))).toThrow('packages/engine/src/a.ts cannot be parsed')
})

test('a tree that keeps the rules passes', () => {
  expect(
    rulesOf({
      ...schemaManifest,
      'packages/contracts/src/index.ts': "import { z } from 'zod'\nexport const a = z.string()\nexport * from './ids.ts'\n",
      'packages/contracts/test/a.test.ts': "import { readFileSync } from 'node:fs'\n",
      'packages/queries/src/claim.ts':
        "import { connect } from '@holdfast/schema'\nimport '@holdfast/schema/role'\nconst text = sql`SELECT 1`\n",
      'packages/queries/package.json': manifest('devDependencies', '@holdfast/testbed'),
      'packages/schema/src/migrate.ts': "await client.query('BEGIN')\n",
      'packages/schema/test/a.test.ts':
        "import { testDatabase } from '@holdfast/testbed'\nimport { x } from '../../../tools/generate.ts'\n",
      'packages/engine/test/a.test.ts': "import { testDatabase } from '@holdfast/testbed'\nsql`SELECT 1`\nprocess.env.X\n",
      'packages/host/src/app.ts': "import { Module } from '@nestjs/common'\nimport type { X } from '@holdfast/engine'\n",
      'packages/host/src/env.ts': 'export const port = process.env.PORT\n',
      'apps/api/src/env.ts': 'export const port = process.env.PORT\n',
      'apps/api/src/main.ts': "import { claim } from '@holdfast/queries'\n",
      'examples/a.ts': "import { machine } from '@holdfast/engine'\n",
      'tools/start.ts': "import '../tests/bench/engine.ts'\nprocess.env.X\nsql`CREATE DATABASE x`\n",
      'tests/bench/engine.ts': "import { main } from '@holdfast/examples'\nprocess.env.X\nsql`SELECT 1`\n",
    }),
  ).toEqual([])
})

test('what only looks like a breach is none', () => {
  expect(
    rulesOf({
      'packages/engine/src/a.ts': [
        "// import { x } from '@holdfast/host' and process.env and sql`SELECT 1`",
        'const text = "import { x } from \'@holdfast/host\'"',
        "throw new Error('Select a queue, or update the machine: set its name')",
        "const say = 'COMMIT'",
        'const { environment } = process',
        'export const env = import.meta.env',
      ].join('\n'),
      'apps/api/src/manage.controller.ts': '',
    }),
  ).toEqual([])
})

const breaches: readonly (readonly [string, Files, RegExp])[] = [
  ['an upward import', { 'packages/schema/src/a.ts': "import { claim } from '@holdfast/queries'\n" }, /a\.ts:1 .*imports point down only/],
  [
    'a sideways import of a type',
    { 'packages/engine/src/a.ts': "\nimport type { X } from '@holdfast/client'\n" },
    /a\.ts:2 .*point down only/,
  ],
  [
    'an upward import over several lines',
    { 'packages/schema/src/a.ts': "import {\n  claim,\n} from '@holdfast/queries'\n" },
    /a\.ts:3 .*point down/,
  ],
  ['an upward export', { 'packages/schema/src/a.ts': "export { a, b } from '@holdfast/queries'\n" }, /point down only/],
  ['an upward import() ', { 'packages/schema/src/a.ts': "const q = await import('@holdfast/queries')\n" }, /point down only/],
  ['an upward import type', { 'packages/schema/src/a.ts': "type Q = import('@holdfast/queries').Claim\n" }, /point down only/],
  ['an upward import in a test', { 'packages/schema/test/a.test.ts': "import '@holdfast/queries'\n" }, /point down only/],
  ['an upward import in the test kit', { 'packages/testbed/src/a.ts': "import '@holdfast/queries'\n" }, /point down only/],
  [
    'an upward dependency',
    { 'packages/schema/src/a.ts': '', 'packages/schema/package.json': manifest('dependencies', '@holdfast/queries') },
    /package\.json:3 .*point down/,
  ],
  [
    'an upward devDependency',
    { 'packages/schema/src/a.ts': '', 'packages/schema/package.json': manifest('devDependencies', '@holdfast/engine') },
    /package\.json:3 .*point down/,
  ],
  [
    'a ring through the test kit',
    { 'packages/schema/src/a.ts': '', 'packages/schema/package.json': manifest('devDependencies', '@holdfast/testbed') },
    /refuses the ring/,
  ],
  [
    'the test kit as a dependency',
    { 'packages/engine/src/a.ts': '', 'packages/engine/package.json': manifest('dependencies', '@holdfast/testbed') },
    /only tests import/,
  ],
  ['the test kit outside of tests', { 'packages/engine/src/a.ts': "import { x } from '@holdfast/testbed'\n" }, /only tests import/],
  ['a package without a rank', { 'packages/newcomer/src/a.ts': '', 'packages/newcomer/package.json': '{}' }, /has no rank/],
  ['an import of an app', { 'packages/host/src/a.ts': "import { x } from '@holdfast/api'\n" }, /nothing imports an app/],
  ['an app that imports an app', { 'apps/sealer/src/a.ts': "import { x } from '@holdfast/api'\n" }, /nothing imports an app/],
  [
    'a dependency on an app',
    { 'apps/sealer/src/a.ts': '', 'apps/sealer/package.json': manifest('dependencies', '@holdfast/api') },
    /nothing imports an app/,
  ],
  [
    'a deep import',
    { ...schemaManifest, 'packages/queries/src/a.ts': "import { x } from '@holdfast/schema/src/connect.ts'\n" },
    /is not exported/,
  ],
  [
    'a deep import in a test',
    { ...schemaManifest, 'tests/a.test.ts': "import { x } from '@holdfast/schema/connect'\n" },
    /is not exported/,
  ],
  [
    'a path into another package',
    { 'packages/queries/src/a.ts': "import { x } from '../../schema/src/connect.ts'\n" },
    /leaves packages\/queries/,
  ],
  [
    'a path from the tests into a package',
    { 'tests/a.test.ts': "import { x } from '../packages/schema/src/connect.ts'\n" },
    /leaves tests/,
  ],
  ['Nest below the host', { 'packages/engine/src/a.ts': "import { Module } from '@nestjs/common'\n" }, /Nest appears first/],
  [
    'Nest as a dependency below the host',
    { 'packages/engine/src/a.ts': '', 'packages/engine/package.json': manifest('dependencies', '@nestjs/common') },
    /Nest appears first/,
  ],
  ['I/O in contracts', { 'packages/contracts/src/a.ts': "import { readFileSync } from 'node:fs'\n" }, /words only/],
  ['Kysely in contracts', { 'packages/contracts/src/a.ts': "import type { Kysely } from 'kysely'\n" }, /words only/],
  ['the environment outside env.ts', { 'apps/api/src/main.ts': 'const port = process.env.PORT\n' }, /env\.ts only/],
  ['the environment in brackets', { 'packages/host/src/telemetry.ts': "const port = process['env']['PORT']\n" }, /env\.ts only/],
  ['the environment by destructuring', { 'packages/host/src/a.ts': 'const { env } = process\n' }, /env\.ts only/],
  ['the environment by import', { 'packages/host/src/a.ts': "import { env } from 'node:process'\n" }, /env\.ts only/],
  ['a SQL template outside of queries', { 'packages/engine/src/a.ts': 'const q = sql<Row>`SELECT 1`\n' }, /SQL stands in/],
  ['raw SQL of Kysely', { 'packages/engine/src/a.ts': 'const q = sql.raw(text)\n' }, /SQL stands in/],
  ['SQL in a string', { 'apps/api/src/a.ts': "db.query('DELETE FROM holdfast.instance')\n" }, /SQL stands in/],
  ['SQL in lower case', { 'apps/api/src/a.ts': "const text = 'select id from holdfast.instance'\n" }, /SQL stands in/],
  [
    'SQL that begins on the next line',
    { 'apps/api/src/a.ts': 'const text = `\n  UPDATE ${table}\n  SET a = 1`\n' },
    /a\.ts:1 SQL stands in/,
  ],
  ['a SQL command', { 'packages/client/src/a.ts': "await client.query('COMMIT')\n" }, /SQL stands in/],
  ['SQL in an example', { 'examples/a.ts': 'const q = sql`SELECT 1`\n' }, /SQL stands in/],
  ['a file name that says nothing', { 'packages/engine/src/utils.ts': '' }, /utils\.ts says nothing/],
  [
    'a folder name that says nothing',
    { 'packages/engine/src/common/a.ts': '', 'packages/engine/src/common/b.ts': '' },
    /common says nothing/,
  ],
  ['a name with a word that says nothing', { 'packages/engine/src/lease-manager.ts': '' }, /lease-manager\.ts says nothing/],
]

test.each(breaches)('%s is found once, with file and line', (_name, files, rule) => {
  const found = rulesOf(files)
  expect(found).toHaveLength(1)
  expect(found[0]).toMatch(rule)
  expect(found[0]).toMatch(/^[\w/.-]+:\d+ /)
})

test('every breach says what to do', () => {
  const violations = findLayerViolations(tree(Object.assign({}, ...breaches.map(([, files]) => files)) as Files))
  expect(violations.length).toBeGreaterThan(15)
  for (const { remedy } of violations) expect(remedy).not.toBe('')
})
