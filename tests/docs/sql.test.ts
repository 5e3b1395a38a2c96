// docs/sql.md as a reader would follow it: its statements in their order, in one database that has a project `default`.
import { SqlStates } from '@holdfast/contracts'
import { createProject } from '@holdfast/queries'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { blocksOf } from '../end-to-end/doc-commands.ts'
import { ROOT } from '../end-to-end/running-system.ts'

const PAGE = 'docs/sql.md'
const blocks = blocksOf(PAGE, 'sql')
/** Roles belong to the cluster, which other runs may share. */
const role = `shop_app_${crypto.randomUUID().slice(0, 8)}`

let database: TestDatabase
let client: pg.Client
beforeAll(async () => {
  database = await testDatabase()
  await createProject(database.db, { name: 'default' })
  client = new pg.Client({ connectionString: database.url })
  await client.connect()
})
afterAll(async () => {
  await client.query(`RESET SESSION AUTHORIZATION; DROP ROLE IF EXISTS ${role}`)
  await client.end()
  await database[Symbol.asyncDispose]()
})

test('the page has statements for its owner and for a role of its reader', () => {
  expect(new Set(blocks.map((block) => block.as))).toEqual(new Set([undefined, 'owner', 'shop_app']))
})

test.each(blocks)('$text', async ({ text, prints, as }) => {
  await client.query(as === 'shop_app' ? `SET SESSION AUTHORIZATION ${role}` : 'RESET SESSION AUTHORIZATION')
  const answers = (await client.query(text.replaceAll('shop_app', role))) as unknown as pg.QueryResult | pg.QueryResult[]
  const last = Array.isArray(answers) ? answers.at(-1) : answers
  for (const pattern of prints) expect(last?.rows.map((row) => JSON.stringify(row)).join('\n')).toMatch(pattern)
})

test('its table of errors is that of contracts', () => {
  const rows = [...readFileSync(join(ROOT, PAGE), 'utf8').matchAll(/^\| `(HF\w{3})` \| `(\w+)` \|/gm)].map(([, state, code]) => [
    code,
    state,
  ])
  expect(Object.fromEntries(rows)).toEqual(SqlStates)
})

test('its table of arguments is that of the function', async () => {
  const { rows } = await client.query<{ name: string; names: string[] }>(`
    SELECT proname AS name, proargnames AS names FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND proname IN ('enqueue', 'enqueue_many', 'signal')`)
  const page = readFileSync(join(ROOT, PAGE), 'utf8')
  expect(rows).toHaveLength(3)
  for (const { name, names } of rows)
    for (const argument of names) expect(page, `${name}(${argument})`).toMatch(new RegExp(`\\b${argument}\\b`))
})
