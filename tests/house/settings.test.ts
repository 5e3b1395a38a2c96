// docs/operations/settings.md against the files that read the environment. That nothing else reads it is what the layer check sees to.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const root = join(import.meta.dirname, '../..')
const below = (folder: string): string[] => readdirSync(join(root, folder)).map((name) => `${folder}/${name}/src/env.ts`)

/** Each file, and what the page calls whoever reads it. */
const readers: Readonly<Record<string, string>> = {
  'packages/host/src/env.ts': 'all',
  'packages/cli/src/env.ts': '`holdfast`',
  'packages/testbed/src/env.ts': 'tests',
  'packages/testing/src/env.ts': 'tests',
  'tools/env.ts': '`npm start`',
  ...Object.fromEntries(below('apps').map((file) => [file, file.split('/')[1] ?? ''])),
}
const read = (file: string): string => {
  try {
    return readFileSync(join(root, file), 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ''
    throw error
  }
}

interface Setting {
  readonly name: string
  readonly reader: string
  /** As the schema says it; undefined where there is none, or code finds it. */
  readonly fallback: string | undefined
}

const settings: readonly Setting[] = Object.entries(readers).flatMap(([file, reader]) => {
  const text = read(file)
  // An entry of a schema, or a name that is looked up or handed on; never one in a comment.
  const code = text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '')
  const names = new Set([
    ...[...code.matchAll(/^ {2}(HOLDFAST_\w+): /gm)].map(([, name = '']) => name),
    ...[...code.matchAll(/'(HOLDFAST_\w+)'/g)].map(([, name = '']) => name),
  ])
  return [...names].map((name) => {
    const entry = new RegExp(`^ {2}${name}: (.*)$`, 'm').exec(code)?.[1]
    return { name, reader, fallback: /\.default\('?([^')]*)'?\)/.exec(entry ?? '')?.[1]?.replaceAll(/(?<=\d)_(?=\d)/g, '') }
  })
})

interface Row {
  readonly readers: readonly string[]
  readonly fallback: string
}
const rows = new Map<string, Row>()
for (const line of read('docs/operations/settings.md').split('\n')) {
  const [, variables = '', role = '', defaults = ''] = line.split('|').map((cell) => cell.trim())
  const names = [...variables.matchAll(/`(HOLDFAST_\w+)`/g)].map(([, name = '']) => name)
  for (const [index, name] of names.entries())
    rows.set(name, { readers: role.split(', '), fallback: names.length > 1 ? (defaults.split(', ')[index] ?? defaults) : defaults })
}

test('every variable that is read has its row, and no row is of one that nobody reads', () => {
  expect(settings.length).toBeGreaterThan(30)
  expect([...new Set(settings.map(({ name }) => name))].toSorted()).toEqual([...rows.keys()].toSorted())
})

test.each(settings)('$name of $reader', ({ name, reader, fallback }) => {
  const row = rows.get(name)
  // What `npm start` sets for the roles is theirs.
  const known =
    reader === '`npm start`' || reader === '`holdfast`'
      ? settings.filter((each) => each.name === name).map((each) => each.reader)
      : [reader]
  expect(known.some((each) => row?.readers.includes(each))).toBe(true)
  if (fallback !== undefined) expect(row?.fallback.replaceAll('`', '').split(' ')[0]).toBe(fallback)
})

test('none is read anywhere else', () => {
  const known = new Set(settings.map(({ name }) => name))
  const sources = ['packages', 'apps'].flatMap((top) =>
    readdirSync(join(root, top))
      .map((home) => join(root, top, home, 'src'))
      .filter((folder) => existsSync(folder))
      .flatMap((folder) =>
        readdirSync(folder, { recursive: true }).flatMap((file) => (String(file).endsWith('.ts') ? [join(folder, String(file))] : [])),
      ),
  )
  expect(sources.length).toBeGreaterThan(100)
  const named = sources.flatMap((file) => [...readFileSync(file, 'utf8').matchAll(/\bHOLDFAST_[A-Z][A-Z_]*[A-Z]\b/g)].map(([name]) => name))
  // Also a message that tells somebody to set one: it has to be there.
  expect([...new Set(named)].filter((name) => !known.has(name))).toEqual([])
})
