// The pages of docs/ that are made of the code: written anew with `vitest run packages/queries/test/docs.test.ts --update`, compared otherwise.
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { InstanceStatuses, isSettled, isTerminal, transitions } from '@holdfast/contracts'
import { allStatements } from '@holdfast/queries'
import { DatabaseRoles, type Role } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { refusedTo, statementsOf } from './role-rights.ts'
import { otherPurpose, servedBy } from './served-by.ts'

const root = join(import.meta.dirname, '../../..')
const docs = join(root, 'docs')
const generated = 'Made by packages/queries/test/docs.test.ts, which also compares it; written anew with `--update`.'
const table = (head: readonly string[], rows: readonly (readonly string[])[]): string =>
  [head, head.map(() => '---'), ...rows].map((row) => `| ${row.join(' | ')} |`).join('\n')
const code = (names: readonly string[]): string => names.map((name) => `\`${name}\``).join(', ')

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(() => database[Symbol.asyncDispose]())

test('states.md is the table of contracts', async () => {
  const source = readFileSync(join(root, 'packages/contracts/src/instance-status.ts'), 'utf8')
  const chart = source
    .slice(0, source.indexOf('/**'))
    .split('\n')
    .filter((line) => line.startsWith('//'))
    .map((line) => line.slice(3).trimEnd())
  const rows = InstanceStatuses.map((from) => [`**${from}**`, ...InstanceStatuses.map((to) => (transitions[from][to] ? 'yes' : ''))])
  const kinds = InstanceStatuses.map((status) => [
    `\`${status}\``,
    isTerminal(status) ? 'over' : isSettled(status) ? 'parked' : 'live',
    purpose[status],
  ])
  await expect(`# States of an instance

${generated}
The source is packages/contracts/src/instance-status.ts; \`packages/queries/test/flush-outcomes.test.ts\` and the interleaving tests hold the statements to it.

\`\`\`
${chart.join('\n')}
\`\`\`

${table(['status', 'kind', 'meaning'], kinds)}

## Moves that may be committed

From the row to the column. Everything else is refused by the WHERE of the statement that would do it.

${table(['', ...InstanceStatuses], rows)}
`).toMatchFileSnapshot(join(docs, 'states.md'))
})

const purpose: Record<(typeof InstanceStatuses)[number], string> = {
  scheduled: 'not due yet: a delay, a sleep, a retry that backs off. Outside the pick index; promoted when due',
  runnable: 'waits to be claimed',
  throttled: 'claimed once and denied by a limit; woken by what frees the capacity',
  executing: 'claimed and leased; its step runs, or its outcome is staged',
  awaiting_signal: 'parked until a signal that it names arrives, or its deadline',
  awaiting_children: 'parked until its last live child has ended',
  done: 'ended with a result',
  failed: 'ended with an error, which says why',
  cancelled: 'ended because somebody wanted it to',
}

test('indexes.md names every index, what it holds and whom it serves', async () => {
  const { rows } = await sql<{ name: string; relation: string; definition: string; constraint: string | null }>`
    SELECT i.relname AS name, t.relname AS relation, pg_get_indexdef(x.indexrelid) AS definition, c.conname AS constraint
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
    LEFT JOIN pg_constraint c ON c.conindid = x.indexrelid AND c.contype IN ('p', 'u')
    WHERE t.relnamespace = 'holdfast'::regnamespace AND NOT t.relispartition
    ORDER BY t.relname, i.relname`.execute(database.db)
  expect(rows.map((row) => row.name).toSorted()).toEqual(Object.keys(servedBy).toSorted())
  const unserved = Object.keys(servedBy).filter((index) => servedBy[index]?.length === 0)
  expect(Object.keys(otherPurpose).toSorted()).toEqual(unserved.toSorted())

  const lines = rows.map(({ name, relation, definition }) => {
    const [, columns, predicate] = /USING btree (\(.*?\))(?: WHERE (.*))?$/.exec(definition) ?? []
    const unique = definition.startsWith('CREATE UNIQUE')
    const use = servedBy[name]?.length ? code(servedBy[name]) : (otherPurpose[name] ?? '')
    return [
      `\`${relation}\``,
      `\`${name}\``,
      `${unique ? 'unique ' : ''}\`${columns}\``,
      predicate === undefined ? '' : `\`${predicate}\``,
      use,
    ]
  })
  await expect(`# Indexes

${generated}

Each index exists for the statements named beside it, and its predicate is theirs. \`packages/queries/test/plans.test.ts\` explains each of these
statements on a seeded million rows, with the settings of the role that sends it, and fails on a plan that scans a large table, joins by hash or merge,
or uses another index.

Only \`instance_pkey\` is a full unique index on instances, and its column never changes: an UPDATE of any other column locks the row
FOR NO KEY UPDATE, which lets a KEY SHARE lock in, as a foreign key of yours would take it. A full unique index on a column that changes would take that away.

${table(['table', 'index', 'columns', 'where', 'serves'], lines)}

Not served by an index of their own, because they are for people: \`engine.get_queue_depths\` counts what is live; \`engine.list_instances\` with a rare
filter walks the project's rows until its page is full; \`engine.match_instances\` looks at as many as it is told, whatever it finds.

Known limit: a claim walks over runnable rows whose serial key executes, if they are more urgent than what it can take. Behind the others they cost nothing.
`).toMatchFileSnapshot(join(docs, 'indexes.md'))
})

test('operations/grants.md is what the catalog says', async () => {
  const { rows } = await sql<{ role: string; object: string; rights: string[] }>`
    WITH granted AS (
      SELECT a.grantee, c.relname::text AS object, a.privilege_type::text AS right, NULL::text AS part
      FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = 'holdfast'::regnamespace
      UNION ALL
      SELECT a.grantee, c.relname, a.privilege_type, t.attname
      FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a WHERE c.relnamespace = 'holdfast'::regnamespace
      UNION ALL
      SELECT a.grantee, p.proname || '()', a.privilege_type, NULL
      FROM pg_proc p, aclexplode(p.proacl) a WHERE p.pronamespace = 'holdfast'::regnamespace
    ), grouped AS (
      SELECT r.rolname::text AS role, g.object, g.right || coalesce(' (' || string_agg(g.part, ', ' ORDER BY g.part) || ')', '') AS one
      FROM granted g JOIN pg_roles r ON r.oid = g.grantee
      WHERE r.rolname LIKE 'holdfast%' GROUP BY r.rolname, g.object, g.right
    )
    SELECT role, object, array_agg(one ORDER BY one) AS rights FROM grouped GROUP BY role, object ORDER BY role, object`.execute(
    database.db,
  )
  const section = (heading: string, name: string, role?: Role): string => {
    const granted = rows.filter((row) => row.role === name).map(({ object, rights }) => [`\`${object}\``, rights.join(', ')])
    const refused = role === undefined ? '' : `\nRefused, among all else that is not granted: ${Object.keys(refusedTo[role]).join('; ')}.\n`
    const sends = role === undefined ? '' : `\nSends: ${code(statementsOf[role])}.\n`
    return `## ${heading}\n\n${table(['on', 'may'], granted)}\n${sends}${refused}`
  }
  const apps = (Object.entries(DatabaseRoles) as [Role, string][]).map(([role, name]) => section(`${role}: \`${name}\``, name, role))
  await expect(`# Grants

${generated}

Each app connects as a login of your own that is a member of its database role (or as the role itself), and acts as that role. The migrations create the
roles without a password and grant the rights below: an allow-list, so that a new table is closed to all until a migration opens it. Nothing is granted to
PUBLIC. \`packages/queries/test/grants.test.ts\` runs every statement as the roles that send it, and tries what must be refused.

A scheduler that applies its outcomes itself needs the rights of the flusher too.

${apps.join('\n')}
${section("a developer's own role: `GRANT holdfast_enqueue TO my_app`", 'holdfast_enqueue')}
To enqueue and signal inside the developer's own transactions, with the client or the [SQL functions](../sql.md). It reads every project's instances and
writes into every project: give it to services that you trust with that, and the role below or the HTTP API to others.

${section('a role that calls the SQL functions only: `GRANT holdfast_sql TO my_app`', 'holdfast_sql')}
It reads and writes no table. The functions run as their owner, and let it write into the projects that \`holdfast.project_role\` has for it ([sql.md](../sql.md)).
\`packages/queries/test/sql-functions.test.ts\` tries what must be refused.
`).toMatchFileSnapshot(join(docs, 'operations/grants.md'))
})

test('guarantees.md names constraints, invariants and tests that exist', async () => {
  const page = readFileSync(join(docs, 'guarantees.md'), 'utf8')
  const numbers = [...page.matchAll(/^\| G(\d+) \|/gm)].map((match) => Number(match[1]))
  expect(numbers.length).toBeGreaterThan(10)
  expect(numbers).toEqual(numbers.map((_number, index) => index + 1))

  const { rows } = await sql<{ name: string }>`
    SELECT conname AS name FROM pg_constraint WHERE connamespace = 'holdfast'::regnamespace
    UNION SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('i', 'I')
    UNION SELECT tgname FROM pg_trigger WHERE NOT tgisinternal`.execute(database.db)
  const known = new Set(rows.map((row) => row.name))
  const named = [
    ...page.matchAll(
      /`((?:instance|outcome|signal|api_token|project|machine|process|schedule|transition|gate_slot|rate_bucket|limit_policy)_[a-z_]+)`/g,
    ),
  ].map((match) => match[1] ?? '')
  expect(named.length).toBeGreaterThan(0)
  expect(named.filter((name) => !known.has(name))).toEqual([])

  const source = ['engine', 'schedule']
    .map((of) => readFileSync(join(root, `packages/invariants/src/${of}-invariants.ts`), 'utf8'))
    .join('\n')
  const defined = new Set([...source.matchAll(/^ {4}'([ES]\d+)',$/gm)].map((match) => match[1]))
  const cited = new Set([...page.matchAll(/\b([ES]\d+)\b/g)].map((match) => match[1]))
  expect([...cited].filter((id) => !defined.has(id))).toEqual([])
  expect([...defined].filter((id) => !cited.has(id))).toEqual([]) // no invariant without a guarantee

  const files = [...page.matchAll(/`((?:packages|apps|tests)\/[\w/.-]+\.ts)`/g)].map((match) => match[1] ?? '')
  expect(files.length).toBeGreaterThan(0)
  expect(files.filter((file) => !existsSync(join(root, file)))).toEqual([])
})

test('locks.md speaks of every statement that takes a lock, and of no other', () => {
  const page = readFileSync(join(docs, 'locks.md'), 'utf8')
  const cited = new Set([...page.matchAll(/`((?:engine|process|schedules|tenants)\.[a-z_]+)`/g)].map((match) => match[1] ?? ''))
  const writes = [...allStatements]
    .filter(([, statement]) => /\b(?:UPDATE|DELETE|INSERT)\b|SELECT holdfast\./.test(statement.compile(statement.sample).sql))
    .map(([name]) => name)
  expect([...cited].filter((name) => !allStatements.has(name))).toEqual([])
  expect(writes.filter((name) => !cited.has(name))).toEqual([])
})
