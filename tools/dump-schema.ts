// The migrated schema as one readable page, from the catalogs; the embedded PostgreSQL brings no pg_dump, whose output would be longer anyway.
// What this does not know (views, policies, rules, …) it refuses instead of leaving it out.
import { connectOne } from '@holdfast/schema'

const WIDTH = 116

interface Table {
  readonly oid: number
  readonly name: string
  readonly comment: string | null
  readonly partition_key: string | null
  readonly partition_of: string | null
  readonly bound: string | null
  readonly options: string[] | null
  readonly columns: readonly { name: string; type: string; rest: string; comment: string | null }[] | null
  readonly constraints: readonly { name: string; definition: string; comment: string | null }[] | null
  readonly indexes: readonly { name: string; definition: string; comment: string | null }[] | null
  readonly triggers: readonly { definition: string }[] | null
}

interface Grant {
  readonly grantee: string
  readonly object: string
  readonly privileges: string[]
  readonly columns: string[] | null
}

interface Named {
  readonly name: string
  readonly definition: string
  readonly comment: string | null
}

/** The page for the database at `connectionString`. The same migrations give the same text. Partitions of single days are left out. */
export async function dumpSchema(connectionString: string): Promise<string> {
  // With an empty search path the server writes each name of ours with its schema.
  const client = await connectOne({ connectionString, settings: { search_path: 'pg_catalog' } })
  const rows = async <Row>(text: string): Promise<Row[]> => (await client.query(text)).rows as Row[]
  try {
    const unknown = (await rows<{ what: string }>(UNKNOWN)).map(({ what }) => what)
    if (unknown.length > 0) throw new Error(`tools/dump-schema.ts cannot write these; teach it first: ${unknown.join(', ')}`)
    const tables = await rows<Table>(TABLES)
    const functions = await rows<Named>(FUNCTIONS)
    return [
      tour(tables),
      section('Types', (await rows<Named>(ENUMS)).map(typeText)),
      section('Tables', tables.map(tableText)),
      section('Functions', functions.map(functionText)),
      section(
        'Triggers',
        tables.flatMap(({ triggers }) => triggers ?? []).map(({ definition }) => `${definition};`),
      ),
      section('Grants', grantTexts(await rows<Grant>(GRANTS), await rows<Role>(ROLES))),
    ]
      .filter(Boolean)
      .join('')
  } finally {
    await client.end()
  }
}

function tour(tables: readonly Table[]): string {
  const entries = tables
    .filter((table) => table.partition_of === null)
    .map(({ name, comment }) => {
      if (comment === null) throw new Error(`table holdfast.${name} has no comment; the tour of the tables needs one (COMMENT ON TABLE)`)
      return `--\n-- ${name}\n${wrap(comment, '--   ')}`
    })
  return `-- The database as the migrations make it. Written by \`npm run generate\` and compared in a test; to be read, not run.
--
-- A tour of the tables
${entries.join('\n')}
`
}

function wrap(text: string, indent: string): string {
  const lines: string[] = []
  for (const word of text.split(/\s+/)) {
    const last = lines.at(-1)
    if (last !== undefined && indent.length + last.length + 1 + word.length <= WIDTH) lines[lines.length - 1] = `${last} ${word}`
    else lines.push(word)
  }
  return lines.map((line) => indent + line).join('\n')
}

const section = (title: string, texts: readonly string[]): string =>
  texts.length === 0 ? '' : `\n-- ${title} ${'-'.repeat(WIDTH - title.length - 4)}\n\n${texts.join('\n\n')}\n`

/** The server breaks long expressions itself, at the left edge. */
const inside = (text: string): string => text.replaceAll('\n', '\n    ')

const quoted = (text: string): string => `'${text.replaceAll("'", "''")}'`
const commentOn = (object: string, comment: string | null): string[] =>
  comment === null ? [] : [`COMMENT ON ${object} IS\n  ${quoted(comment)};`]

const typeText = ({ name, definition, comment }: Named): string =>
  [`CREATE TYPE ${name} AS ENUM (${definition});`, ...commentOn(`TYPE ${name}`, comment)].join('\n')

const functionText = ({ name, definition, comment }: Named): string =>
  [`${definition.trimEnd()};`, ...commentOn(`FUNCTION ${name}`, comment)].join('\n')

function tableText(table: Table): string {
  const name = `holdfast.${table.name}`
  const lines: string[] = []
  if (table.partition_of !== null) {
    lines.push(`CREATE TABLE ${name} PARTITION OF holdfast.${table.partition_of} ${table.bound};`)
  } else {
    const columns = table.columns ?? []
    const nameWidth = Math.max(...columns.map((column) => column.name.length))
    const body = [
      ...columns.map(({ name: column, type, rest }) => `  ${column.padEnd(nameWidth)} ${type}${inside(rest)}`),
      ...(table.constraints ?? []).map((constraint) => `  CONSTRAINT ${constraint.name} ${inside(constraint.definition)}`),
    ]
    const partitioned = table.partition_key === null ? '' : ` PARTITION BY ${table.partition_key}`
    const options =
      table.options === null ? '' : ` WITH (\n${table.options.map((option) => `  ${option.replace('=', ' = ')}`).join(',\n')}\n)`
    lines.push(`CREATE TABLE ${name} (\n${body.join(',\n')}\n)${partitioned}${options};`)
  }
  for (const { definition } of table.indexes ?? []) lines.push(`${definition};`)
  // A partition without a comment of its own needs none; the tour tells of the whole.
  lines.push(...commentOn(`TABLE ${name}`, table.comment))
  for (const column of table.columns ?? []) lines.push(...commentOn(`COLUMN ${name}.${column.name}`, column.comment))
  for (const constraint of table.constraints ?? []) lines.push(...commentOn(`CONSTRAINT ${constraint.name} ON ${name}`, constraint.comment))
  for (const index of table.indexes ?? []) lines.push(...commentOn(`INDEX holdfast.${index.name}`, index.comment))
  return lines.join('\n')
}

interface Role {
  readonly name: string
  readonly login: boolean
  readonly settings: string[] | null
}

function grantTexts(grants: readonly Grant[], roles: readonly Role[]): string[] {
  return [...roles, { name: 'PUBLIC', login: false, settings: null }].flatMap((role) => {
    const own = grants.filter(({ grantee }) => grantee === role.name)
    if (own.length === 0) return []
    const texts = own.map(({ object, privileges, columns }) => {
      const which = columns === null ? '' : ` (${columns.join(', ')})`
      return `GRANT ${privileges.join(', ')}${which} ON ${object} TO ${role.name};`
    })
    const settings = (role.settings ?? []).map((setting) => `ALTER ROLE ${role.name} SET ${setting.replace('=', ' = ')};`)
    const head = role.name === 'PUBLIC' ? '-- Everybody' : `-- ${role.name}${role.login ? '' : ', which cannot log in'}`
    return [[head, ...texts, ...settings].join('\n')]
  })
}

/** Partitions of one day come and go with the calendar. */
const KEPT = `c.relnamespace = 'holdfast'::regnamespace AND NOT (c.relispartition AND c.relname ~ '_[0-9]{8}$')`

const TABLES = `
SELECT c.oid, c.relname AS name, obj_description(c.oid, 'pg_class') AS comment, c.reloptions AS options,
  pg_get_partkeydef(c.oid) AS partition_key, parent.relname AS partition_of,
  CASE WHEN c.relispartition THEN pg_get_expr(c.relpartbound, c.oid) END AS bound,
  (SELECT json_agg(json_build_object(
      'name', quote_ident(a.attname), 'type', format_type(a.atttypid, a.atttypmod), 'comment', col_description(c.oid, a.attnum),
      'rest', concat(
        CASE WHEN a.attcollation <> t.typcollation THEN ' COLLATE ' || a.attcollation::regcollation::text END,
        CASE a.attidentity WHEN 'a' THEN ' GENERATED ALWAYS AS IDENTITY' WHEN 'd' THEN ' GENERATED BY DEFAULT AS IDENTITY' END,
        CASE WHEN a.attnotnull AND a.attidentity = '' THEN ' NOT NULL' END,
        CASE a.attgenerated WHEN 's' THEN format(' GENERATED ALWAYS AS (%s) STORED', pg_get_expr(d.adbin, d.adrelid, true))
                            WHEN 'v' THEN format(' GENERATED ALWAYS AS (%s) VIRTUAL', pg_get_expr(d.adbin, d.adrelid, true))
                            ELSE ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid, true) END)) ORDER BY a.attnum)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
  (SELECT json_agg(json_build_object('name', quote_ident(k.conname), 'definition', pg_get_constraintdef(k.oid, true),
      'comment', obj_description(k.oid, 'pg_constraint')) ORDER BY position(k.contype::text IN 'puxcf'), k.conname COLLATE "C")
    FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'x', 'c', 'f') AND k.conislocal AND k.conparentid = 0) AS constraints,
  (SELECT json_agg(json_build_object('name', quote_ident(n.relname), 'definition', pg_get_indexdef(i.indexrelid),
      'comment', obj_description(i.indexrelid, 'pg_class')) ORDER BY n.relname COLLATE "C")
    FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid
    WHERE i.indrelid = c.oid AND NOT n.relispartition AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = n.oid)) AS indexes,
  (SELECT json_agg(json_build_object('definition', pg_get_triggerdef(t.oid, true)) ORDER BY t.tgname COLLATE "C")
    FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal) AS triggers
FROM pg_class c
LEFT JOIN pg_inherits h ON h.inhrelid = c.oid LEFT JOIN pg_class parent ON parent.oid = h.inhparent
WHERE ${KEPT} AND c.relkind IN ('r', 'p')
ORDER BY c.oid` // in the order in which the migrations make them, which tells the story

const ENUMS = `
SELECT format_type(t.oid, NULL) AS name, obj_description(t.oid, 'pg_type') AS comment,
  (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid) AS definition
FROM pg_type t WHERE t.typnamespace = 'holdfast'::regnamespace AND t.typtype = 'e' ORDER BY t.oid`

const FUNCTIONS = `
SELECT p.oid::regprocedure::text AS name, pg_get_functiondef(p.oid) AS definition, obj_description(p.oid, 'pg_proc') AS comment
FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace AND p.prokind IN ('f', 'p') ORDER BY p.oid::regprocedure::text COLLATE "C"`

/** Owners have everything, so their entries say nothing. */
const GRANTS = `
WITH acl AS (
  SELECT 1 AS rank, 'SCHEMA holdfast' AS object, NULL::text AS column_name, 0 AS place, x.*, n.nspowner AS owner
  FROM pg_namespace n, aclexplode(n.nspacl) x WHERE n.nspname = 'holdfast'
  UNION ALL
  SELECT CASE c.relkind WHEN 'S' THEN 3 ELSE 2 END, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || c.oid::regclass::text, NULL, 0, x.*, c.relowner
  FROM pg_class c, aclexplode(c.relacl) x WHERE ${KEPT}
  UNION ALL
  SELECT 2, c.oid::regclass::text, quote_ident(a.attname), a.attnum, x.*, c.relowner
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) x WHERE ${KEPT}
  UNION ALL
  SELECT 4, 'FUNCTION ' || p.oid::regprocedure::text, NULL, 0, x.*, p.proowner
  FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x WHERE p.pronamespace = 'holdfast'::regnamespace
), named AS (
  SELECT *, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS grantee_name,
    privilege_type || CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS privilege
  FROM acl WHERE grantee <> owner
), by_column AS (
  SELECT grantee_name, rank, object, privilege, array_agg(column_name ORDER BY place) AS columns
  FROM named WHERE column_name IS NOT NULL GROUP BY 1, 2, 3, 4
)
SELECT grantee_name AS grantee, rank, object, array_agg(privilege ORDER BY privilege COLLATE "C") AS privileges, NULL::text[] AS columns
FROM named WHERE column_name IS NULL GROUP BY 1, 2, 3
UNION ALL
SELECT grantee_name, rank, object, ARRAY[privilege], columns FROM by_column
ORDER BY 1, 2, 3, 5 NULLS FIRST, 4`

const ROLES = `
SELECT quote_ident(r.rolname) AS name, r.rolcanlogin AS login,
  (SELECT array_agg(setting ORDER BY setting COLLATE "C") FROM pg_db_role_setting s, unnest(s.setconfig) setting
    WHERE s.setrole = r.oid AND s.setdatabase = 0) AS settings
FROM pg_roles r ORDER BY r.rolname COLLATE "C"`

const UNKNOWN = `
SELECT 'relation ' || c.oid::regclass::text AS what FROM pg_class c
WHERE ${KEPT} AND (c.relkind NOT IN ('r', 'p', 'i', 'I', 'S') OR c.relrowsecurity OR c.relpersistence <> 'p'
  OR c.relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i'))
UNION ALL
SELECT 'type ' || format_type(t.oid, NULL) FROM pg_type t
WHERE t.typnamespace = 'holdfast'::regnamespace AND t.typtype NOT IN ('e', 'b') AND t.typrelid = 0
UNION ALL
SELECT 'aggregate ' || p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace AND p.prokind NOT IN ('f', 'p')
UNION ALL
SELECT 'rule ' || r.rulename FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE ${KEPT}
UNION ALL
SELECT 'statistics ' || s.stxname FROM pg_statistic_ext s WHERE s.stxnamespace = 'holdfast'::regnamespace`
